// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/merge.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "generator/arguments.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

using generator::kMostMergeParts;

constexpr int kChunkElements = 8;

void check_rows(const char* name, const Tensor& tensor) {
  if (tensor.dtype > DType::f32) reject("{}: dtype must be f16, bf16 or f32, was {}", name, to_string(tensor.dtype));
  check_shape(name, tensor, kRowsRules);
}

void check_lse(const char* name, const Tensor& lse, const Tensor& out) {
  if (lse.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(lse.dtype));
  check_shape(name, lse, kLseRules);
  require_size(name, lse, kLseRules, 0, out.shape[batch_dim], "out");
  require_size(name, lse, kLseRules, 1, out.shape[heads_dim], "out");
  require_size(name, lse, kLseRules, 2, out.shape[seqlen_dim], "out");
}

void add_part(MergeCall& call, const MergeCall::PartNames& names, const Partial& part) {
  const Tensor& out = *call.out;
  const char *const of_out = names.out.c_str(), *const of_lse = names.lse.c_str();
  check_rows(of_out, part.out);
  if (part.out.dtype != call.parts[0].out.dtype)
    reject("{}: dtype must be {} like that of parts[0].out, was {}", of_out, to_string(call.parts[0].out.dtype),
           to_string(part.out.dtype));
  for (int dim = 0; dim < kRank; ++dim) require_size(of_out, part.out, kRowsRules, dim, out.shape[dim], "out");
  check_lse(of_lse, part.lse, out);
  if (!same_view(part.out, out)) add_operand(call.operands, of_out, part.out, Operand::Role::rows, false);
  if (!call.lse || !same_view(part.lse, *call.lse))
    add_operand(call.operands, of_lse, part.lse, Operand::Role::lse, false);
}

// What an earlier turn wrote is no longer the part that lay there.
void check_apart_from_result(const MergeCall& call, const MergeCall::PartNames& names, const Partial& part) {
  const auto check = [](const std::string& name, const Tensor& given, const char* result, const Tensor& written) {
    if (same_view(given, written))
      reject("{}: must be among the first {} parts to be joined in place, was {} itself", name, kMostMergeParts,
             result);
  };
  check(names.out, part.out, "out", *call.out);
  check(names.lse, part.lse, "lse", *call.lse);
}

generator::MergeArguments arguments_of(const MergeCall& call) {
  const Tensor& out = *call.out;
  generator::MergeArguments arguments{};
  for (const Partial& part : call.parts)
    arguments.parts[arguments.count++] = {static_cast<const char*>(part.out.data),
                                          static_cast<const char*>(part.lse.data), row_strides(part.out),
                                          lse_strides(part.lse)};
  arguments.out = static_cast<char*>(out.data);
  arguments.out_strides = row_strides(out);
  if (call.lse) {
    arguments.lse = static_cast<char*>(call.lse->data);
    arguments.lse_strides = lse_strides(*call.lse);
  }
  arguments.rows = out.shape[batch_dim] * out.shape[seqlen_dim] * out.shape[heads_dim];
  arguments.seqlen = static_cast<int>(out.shape[seqlen_dim]);
  arguments.num_heads = static_cast<int>(out.shape[heads_dim]);
  arguments.chunks = static_cast<int>(out.shape[head_dim_dim] / kChunkElements);
  arguments.row_lanes_log2 = row_lanes_log2(arguments.chunks);
  return arguments;
}

}  // namespace

Operands operands_of_first(const Partial& part) {
  Operands operands;
  constexpr const char* kName = "parts[0].out";
  check_rows(kName, part.out);
  add_operand(operands, kName, part.out, Operand::Role::rows, false);
  return operands;
}

MergeCall validate_merge(const MergeTurn& turn, const Tensor& out, const std::optional<Tensor>& lse) {
  check_rows("out", out);
  const std::int64_t head_dim = out.shape[head_dim_dim];
  if (head_dim == 0 || head_dim % kChunkElements != 0)
    reject("out: head_dim must be a multiple of {}, was {}", kChunkElements, head_dim);
  if (lse) check_lse("lse", *lse, out);
  MergeCall call{{}, {}, turn.parts, &out, lse ? &*lse : nullptr};
  call.names.reserve(turn.parts.size());  // operands point to them
  for (std::size_t i = 0; i < turn.parts.size(); ++i) {
    const std::size_t index = turn.first + i;
    call.names.push_back({fmt::format("parts[{}].out", index), fmt::format("parts[{}].lse", index)});
    add_part(call, call.names.back(), turn.parts[i]);
    if (turn.first > 0 && i > 0) check_apart_from_result(call, call.names.back(), turn.parts[i]);
  }
  add_operand(call.operands, "out", out, Operand::Role::rows, true);
  if (call.lse) add_operand(call.operands, "lse", *call.lse, Operand::Role::lse, true);
  return call;
}

std::vector<MergeTurn> merge_turns(const std::vector<Partial>& parts, const Tensor& out,
                                   const std::optional<Tensor>& lse) {
  constexpr std::size_t kMost = kMostMergeParts;
  if (parts.empty()) reject("parts: must have at least 1, had 0");
  std::vector<MergeTurn> turns{{0, {parts.begin(), parts.begin() + std::min(kMost, parts.size())}}};
  if (parts.size() <= kMost) return turns;
  if (!lse) reject("lse: must be given with more than {} parts, which are joined in turns, was not", kMost);
  if (out.dtype != parts.front().out.dtype)
    reject("out: dtype must be {} like that of parts[0].out with more than {} parts, was {}",
           to_string(parts.front().out.dtype), kMost, to_string(out.dtype));
  for (std::size_t next = kMost; next < parts.size(); next += kMost - 1) {
    MergeTurn turn{next - 1, {{out, *lse}}};
    const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(next);
    turn.parts.insert(turn.parts.end(), begin, begin + std::min<std::ptrdiff_t>(kMost - 1, parts.end() - begin));
    turns.push_back(std::move(turn));
  }
  return turns;
}

const generator::PlainKernel& merge_kernel(DType part, DType out, const Architecture& architecture,
                                           PlainKernels& kernels) {
  for (const auto& [name, dtype] : {std::pair{"part", part}, {"out", out}})
    if (dtype > DType::f32) reject("{}: must be f16, bf16 or f32, was {}", name, to_string(dtype));
  return kernels.get(
      fmt::format("merge {} {} {}", to_string(part), to_string(out), architecture.name),
      [&](const auto& templates) { return generator::render_merge(part, out, architecture, templates); });
}

PlainLaunch make_merge_launch(const MergeCall& call, const Architecture& architecture, PlainKernels& kernels) {
  const generator::MergeArguments arguments = arguments_of(call);
  const generator::PlainKernel& kernel = merge_kernel(call.parts[0].out.dtype, call.out->dtype, architecture, kernels);
  const std::int64_t rows_of_block = kernel.threads >> arguments.row_lanes_log2;
  PlainLaunch made = plain_launch(kernel, ceil_quotient(arguments.rows, rows_of_block), "out");
  made.launch.write_argument(0, arguments);
  return made;
}

}  // namespace flashjit::runtime
