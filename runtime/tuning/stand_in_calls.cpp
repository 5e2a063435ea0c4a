// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/stand_in_calls.h"

#include <fmt/format.h>

#include <limits>

#include "flashjit/error.h"
#include "generator/stand_ins.h"

namespace flashjit::runtime {
namespace {

using generator::FunctionPlace;
using generator::StandIn;
using generator::StandInTensor;

const StandIn* stand_in_for(const generator::FunctionText* function) noexcept {
  return function ? &generator::stand_in_of(*function) : nullptr;
}

std::vector<Capture> captures_without_memory(const StandIn& stand_in) {
  std::vector<Capture> captures;
  for (const StandInTensor& tensor : stand_in.tensors)
    captures.emplace_back(tensor.name, Tensor(nullptr, tensor.dtype, {0}));
  return captures;
}

OptionTensor make_captured(const StandIn& stand_in, const StandInTensor& tensor, const CallShape& shape) {
  const std::int64_t count = tensor.of == StandInTensor::Of::heads ? shape.num_heads_q : shape.seqlen_kv;
  OptionTensor made =
      make_packed(nullptr, tensor.dtype, {count}, [&](std::int64_t index) { return tensor.value(index, count); });
  made.function = stand_in.kind;
  made.capture = tensor.name;
  return made;
}

double changed_score(double score, const StandIn* of_score, const StandIn* of_mask, const FunctionPlace& place,
                     bool in_f32) {
  if (of_mask && !of_mask->mask(place)) return -std::numeric_limits<double>::infinity();
  if (!of_score) return score;
  return in_f32 ? of_score->score_in_f32(static_cast<float>(score), place) : of_score->score(score, place);
}

}  // namespace

AttentionOptions with_stand_ins(const Problem& problem, AttentionOptions options) {
  if (!(tuning_class(problem) == problem))
    throw Error(ErrorCode::unsupported, fmt::format("problem: must be the class {} to be tuned, was {}",
                                                    to_string(tuning_class(problem)), to_string(problem)));
  if (const StandIn* score = stand_in_for(problem.score))
    options.score = Score(score->text, captures_without_memory(*score));
  if (const StandIn* mask = stand_in_for(problem.mask)) options.mask = Mask(mask->text, captures_without_memory(*mask));
  return options;
}

std::vector<OptionTensor> make_captured_tensors(const Problem& problem, const CallShape& shape) {
  std::vector<OptionTensor> tensors;
  for (const StandIn* stand_in : {stand_in_for(problem.score), stand_in_for(problem.mask)}) {
    if (!stand_in) continue;
    for (const StandInTensor& tensor : stand_in->tensors) tensors.push_back(make_captured(*stand_in, tensor, shape));
  }
  return tensors;
}

reference::ScoreHook stand_in_hook(const Problem& problem, const RowsInCall& in_call, bool in_f32) {
  const StandIn *const score = stand_in_for(problem.score), *const mask = stand_in_for(problem.mask);
  if (!score && !mask) return {};
  return [=](const reference::ScoreRows& rows) {
    const std::int64_t keys = in_call.shape.seqlen_kv;
    for (std::int64_t i = 0; i < rows.count * keys; ++i) {
      const FunctionPlace place{in_call.batch + rows.batch,
                                in_call.head + rows.head,
                                in_call.row + rows.first_row + i / keys,
                                i % keys,
                                in_call.shape.seqlen_q,
                                keys};
      double& changed = rows.scores[static_cast<std::size_t>(i)];
      changed = changed_score(changed, score, mask, place, in_f32);
      if (!rows.slopes) continue;
      const bool is_hidden = mask && !mask->mask(place);
      (*rows.slopes)[static_cast<std::size_t>(i)] = is_hidden ? 0 : score ? score->slope(place) : 1;
    }
  };
}

}  // namespace flashjit::runtime
