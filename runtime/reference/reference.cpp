// SPDX-License-Identifier: Apache-2.0
#include "flashjit/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "generator/arguments.h"
#include "generator/dtype.h"
#include "runtime/call/ragged.h"
#include "runtime/call/scales.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/check_call.h"
#include "runtime/reference/head_view.h"
#include "runtime/reference/reference_scores.h"
#include "runtime/reference/result_shapes.h"
#include "runtime/reference/row_scores.h"
#include "runtime/reference/sequences.h"
#include "runtime/support/byte_count.h"
#include "runtime/support/parallel.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using namespace runtime;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// With Real = float probabilities and results are rounded to the dtype, but for probabilities of e4m3, whose rounding
// is a spread.
template <typename Real>
class Head {
 public:
  // batch: the sequence; k_rotary: null, or the columns behind those of k; hook: empty for none.
  Head(std::int64_t batch, const HeadView& q, const HeadView& k, const HeadView* k_rotary, const HeadView& v,
       const AttentionOptions& opts, const ScoreHook& hook)
      : of_probabilities_(generator::is_of_8_bits(q.tensor.dtype) ? DType::e4m3 : q.tensor.dtype),
        of_results_(generator::is_of_8_bits(q.tensor.dtype) ? opts.out_dtype.value_or(DType::bf16) : q.tensor.dtype),
        out_scale_(opts.out_scale ? load_element(opts.out_scale->data, opts.out_scale->dtype, 0) : 1),
        scores_(batch, q, k, k_rotary, opts, {hook}),
        values_(unpack<Real>(v, false)),
        head_dim_v_(v.width()),
        sum_(static_cast<std::size_t>(head_dim_v_)),
        probabilities_(static_cast<std::size_t>(k.rows())) {}

  void ask_hook(std::int64_t first_row, std::int64_t count) { scores_.ask_hook(first_row, count); }

  // Writes head_dim_v results, and of each how far rounding to 8 bits takes it, unless spread is null; returns the
  // row's LSE.
  double attend(std::int64_t row, double* out, double* spread) {
    const KeyRange keys = scores_.of_row(row);
    std::fill_n(out, head_dim_v_, 0.0);
    if (keys.empty()) return static_cast<double>(scores_.sink());
    Real total = std::exp(scores_.sink() - scores_.max());
    for (std::int64_t key = keys.begin; key < keys.end; ++key)
      if (!scores_.hides(key)) total += probability(key) = std::exp(scores_[key] - scores_.max());
    const Real divisor = total * scores_.kept_share() * static_cast<Real>(out_scale_);
    if (spread != nullptr) find_spread(keys, divisor, spread);
    add_values(keys, [&](Real p) { return spread != nullptr ? p : rounded(of_probabilities_, p); });
    for (std::int64_t i = 0; i < head_dim_v_; ++i) out[i] = rounded(of_results_, saturated(sum_[i] / divisor));
    return static_cast<double>(scores_.max() + std::log(total));
  }

 private:
  static Real rounded(DType dtype, Real value) {
    if constexpr (std::is_same_v<Real, double>) return value;
    return static_cast<Real>(round_to(dtype, value));
  }

  // What is too large for e4m3 becomes the largest that it has; NaN stays.
  Real saturated(Real value) const {
    constexpr Real kLargest = 448;
    if (of_results_ != DType::e4m3) return value;
    return value > kLargest ? kLargest : value < -kLargest ? -kLargest : value;
  }

  Real& probability(std::int64_t key) { return probabilities_[static_cast<std::size_t>(key)]; }

  // Into sum_.
  template <class Round>
  void add_values(const KeyRange& keys, Round round) {
    std::fill(sum_.begin(), sum_.end(), Real{0});
    for (std::int64_t key = keys.begin; key < keys.end; ++key)
      if (!scores_.hides(key) && scores_.keeps(key))
        add_multiple(static_cast<Real>(round(probability(key))), &values_[key * head_dim_v_], sum_.data(), head_dim_v_);
  }
  // What rounding to 8 bits does changes with what probabilities are relative to, which in kernels is a maximum that
  // may be out of date: of several such, per column the farthest from unrounded sums.
  void find_spread(const KeyRange& keys, Real divisor, double* spread) {
    constexpr double kPeaks[] = {8, 9.513657, 11.313708, 13.454343};  // 2^3 to 2^3.75
    std::fill_n(spread, head_dim_v_, 0.0);
    add_values(keys, [](Real p) { return p; });
    const std::vector<Real> unrounded = sum_;
    for (const double peak : kPeaks) {
      add_values(keys, [&](Real p) { return round_to(of_probabilities_, p * peak) / peak; });
      for (std::size_t i = 0; i < sum_.size(); ++i)
        spread[i] = std::max(spread[i], static_cast<double>(std::abs((sum_[i] - unrounded[i]) / divisor)));
    }
  }

  DType of_probabilities_, of_results_;
  double out_scale_;  // what results are divided by
  RowScores<Real> scores_;
  std::vector<Real> values_;  // [seqlen_kv, head_dim_v]
  std::int64_t head_dim_v_;
  std::vector<Real> sum_, probabilities_;  // of a row
};

Result make_result(const Tensor& q, const Tensor& v) {
  Result result;
  result.shape = {q.shape[batch_dim], q.shape[seqlen_dim], q.shape[heads_dim], v.shape[head_dim_dim]};
  std::size_t rows = 1;
  for (const Dim dim : {batch_dim, seqlen_dim, heads_dim}) rows *= static_cast<std::size_t>(q.shape[dim]);
  result.out.resize(byte_count("out", DType::f32, result.shape) / size_of(DType::f32));
  result.lse.resize(rows, -kInfinity);
  return result;
}

// A head with its scales: those beside q of e4m3 are of sequences, wherever these lie.
HeadView head_of_sequence(const Tensor& tensor, const SequenceRows& rows, std::int64_t head,
                          const std::optional<Tensor>& scale, bool beside_queries, std::int64_t sequence) {
  if (!beside_queries) return {tensor, rows, head, in_one_form(scale, tensor)};
  Tensor form = head_scales_in_one_form(scale, tensor);
  if (scale) form.data = static_cast<float*>(form.data) + sequence * form.strides[batch_dim];
  form.strides[batch_dim] = 0;
  return {tensor, rows, head, form, is_of_blocks(scale) ? generator::kRowsOfScale : 1};
}

// Rows of a head of a sequence.
struct Task {
  std::int64_t sequence, head, first, end;
};
std::vector<Task> tasks_of(const std::vector<SequencePlace>& sequences, std::int64_t heads) {
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < sequences.size(); ++i)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t first = 0; first < sequences[i].queries.count; first += kRowsOfTask)
        tasks.push_back(
            {static_cast<std::int64_t>(i), head, first, std::min(first + kRowsOfTask, sequences[i].queries.count)});
  return tasks;
}

template <typename Real>
Result compute_with_batch(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                          const ScoreHook& hook) {
  check_inputs(q, k, v, opts);
  Result result = make_result(q, v);
  if (std::is_same_v<Real, float> && generator::is_of_8_bits(q.dtype)) result.spread.resize(result.out.size());
  if (result.lse.empty()) return result;
  const std::int64_t rows = q.shape[seqlen_dim], heads = q.shape[heads_dim], head_dim_v = v.shape[head_dim_dim];
  const std::int64_t heads_per_group = heads / k.shape[heads_dim];
  const std::vector<SequencePlace> sequences = sequences_of(q, k, opts);
  const std::vector<Task> tasks = tasks_of(sequences, heads);
  parallel_for(tasks.size(), [&](std::size_t index) {
    const Task& task = tasks[index];
    const auto& [queries, keys] = sequences[static_cast<std::size_t>(task.sequence)];
    const std::int64_t head_kv = task.head / heads_per_group;
    const auto head_of = [&](const Tensor& tensor, const SequenceRows& place, std::int64_t head,
                             const std::optional<Tensor>& scale) {
      return head_of_sequence(tensor, place, head, scale, generator::is_of_8_bits(q.dtype), task.sequence);
    };
    std::optional<HeadView> k_rotary;
    if (opts.k_rotary) k_rotary.emplace(HeadView{*opts.k_rotary, keys, head_kv});
    Head<Real> worker(task.sequence, head_of(q, queries, task.head, opts.q_scale),
                      head_of(k, keys, head_kv, opts.k_scale), k_rotary ? &*k_rotary : nullptr,
                      head_of(v, keys, head_kv, opts.v_scale), opts, hook);
    worker.ask_hook(task.first, task.end - task.first);
    for (std::int64_t row = task.first; row < task.end; ++row) {
      const std::int64_t at = queries.first + row;
      const std::int64_t first = ((queries.batch * rows + at) * heads + task.head) * head_dim_v;
      double* const spread = result.spread.empty() ? nullptr : &result.spread[first];
      result.lse[(queries.batch * heads + task.head) * rows + at] = worker.attend(row, &result.out[first], spread);
    }
  });
  return result;
}

template <typename Real>
Result compute(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts, const ScoreHook& hook) {
  if (!is_ragged(opts)) return compute_with_batch<Real>(q, k, v, opts, hook);
  const CallWithBatch with(q, k, v, {}, opts);
  Result result = compute_with_batch<Real>(with.q, with.k, with.v, with.opts, hook);
  if (lacks_batch(q, opts.cu_seqlens_q)) result.shape = without_batch(result.shape);
  return result;
}

// merged: of the parts before it.
void add_part(Result& merged, const Result& part) {
  const Dims rows = lse_shape(merged.shape);
  const std::int64_t seqlen = rows[rows.size() - 1], heads = rows[rows.size() - 2];
  const auto width = static_cast<std::size_t>(merged.shape[merged.shape.size() - 1]);
  for (std::size_t i = 0; i < merged.lse.size(); ++i) {
    if (part.lse[i] == -kInfinity) continue;
    const double largest = std::max(merged.lse[i], part.lse[i]);
    const double before = std::exp(merged.lse[i] - largest), added = std::exp(part.lse[i] - largest);
    const auto row = static_cast<std::int64_t>(i);
    const std::int64_t batch_of_row = row / seqlen / heads, head = row / seqlen % heads;
    const auto first = static_cast<std::size_t>((batch_of_row * seqlen + row % seqlen) * heads + head) * width;
    const auto add = [&](std::vector<double>& values, const std::vector<double>& of_part) {
      for (std::size_t at = first; at < first + width; ++at)
        values[at] = (before * values[at] + added * of_part[at]) / (before + added);
    };
    add(merged.out, part.out);
    if (!merged.spread.empty()) add(merged.spread, part.spread);
    merged.lse[i] = largest + std::log(before + added);
  }
}

}  // namespace

Result attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_functions(opts);
  return compute<double>(q, k, v, opts, {});
}

Result attention_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_functions(opts);
  return compute<float>(q, k, v, opts, {});
}

Result attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                 const ScoreHook& hook) {
  return compute<double>(q, k, v, opts, hook);
}

Result attention_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                                  const ScoreHook& hook) {
  return compute<float>(q, k, v, opts, hook);
}

Result merge(const std::vector<Result>& parts) {
  if (parts.empty()) reject("parts: must have at least 1, had 0");
  Result merged = parts.front();
  std::fill(merged.out.begin(), merged.out.end(), 0.0);
  std::fill(merged.spread.begin(), merged.spread.end(), 0.0);
  std::fill(merged.lse.begin(), merged.lse.end(), -kInfinity);
  for (const Result& part : parts) {
    check_same_shape("parts", part.shape, merged.shape);
    if (part.spread.size() != merged.spread.size())
      reject("parts: all or none must have a spread, of {} elements, had {}", merged.spread.size(), part.spread.size());
    add_part(merged, part);
  }
  return merged;
}

}  // namespace flashjit::reference
