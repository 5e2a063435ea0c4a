// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/sum.h"

#include <cstddef>

#include <fmt/format.h>

#include "generator/arguments.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

using generator::kMostSumParts;

constexpr int kSumChunk = 8;  // elements

void check_summed(const char* name, const Tensor& tensor) {
  if (tensor.dtype > DType::f32) reject("{}: dtype must be f16, bf16 or f32, was {}", name, to_string(tensor.dtype));
  check_shape(name, tensor, kRowsRules);
}

void add_summand(SumCall& call, const char* name, const Tensor& part) {
  check_summed(name, part);
  if (part.dtype != call.parts[0].dtype)
    reject("{}: dtype must be {} like that of parts[0], was {}", name, to_string(call.parts[0].dtype),
           to_string(part.dtype));
  for (int dim = 0; dim < kRank; ++dim) require_size(name, part, kRowsRules, dim, call.out->shape[dim], "out");
  if (!same_view(part, *call.out)) add_operand(call.operands, name, part, Operand::Role::rows, false);
}

generator::SumArguments sum_arguments(const SumCall& call) {
  const Tensor& out = *call.out;
  generator::SumArguments arguments{};
  for (const Tensor& part : call.parts)
    arguments.parts[arguments.count++] = {static_cast<const char*>(part.data), row_strides(part)};
  arguments.out = static_cast<char*>(out.data);
  arguments.out_strides = row_strides(out);
  arguments.rows = out.shape[batch_dim] * out.shape[seqlen_dim] * out.shape[heads_dim];
  arguments.seqlen = static_cast<int>(out.shape[seqlen_dim]);
  arguments.num_heads = static_cast<int>(out.shape[heads_dim]);
  arguments.chunks = static_cast<int>(out.shape[head_dim_dim] / kSumChunk);
  arguments.row_lanes_log2 = row_lanes_log2(arguments.chunks);
  return arguments;
}

}  // namespace

SumCall validate_sum(const std::vector<Tensor>& parts, const Tensor& out) {
  if (parts.empty() || parts.size() > kMostSumParts)
    reject("parts: must be from 1 to {}, were {}", kMostSumParts, parts.size());
  check_summed("out", out);
  const std::int64_t head_dim = out.shape[head_dim_dim];
  if (head_dim == 0 || head_dim % kSumChunk != 0)
    reject("out: head_dim must be a multiple of {}, was {}", kSumChunk, head_dim);
  SumCall call{{}, {}, parts, &out};
  call.names.reserve(parts.size());  // operands point to them
  for (std::size_t i = 0; i < parts.size(); ++i)
    add_summand(call, call.names.emplace_back(fmt::format("parts[{}]", i)).c_str(), parts[i]);
  add_operand(call.operands, "out", out, Operand::Role::rows, true);
  return call;
}

const generator::PlainKernel& sum_kernel(DType part, DType out, const Architecture& architecture,
                                         PlainKernels& kernels) {
  for (const auto& [name, dtype] : {std::pair{"part", part}, {"out", out}})
    if (dtype > DType::f32) reject("{}: must be f16, bf16 or f32, was {}", name, to_string(dtype));
  return kernels.get(fmt::format("sum {} {} {}", to_string(part), to_string(out), architecture.name),
                     [&](const auto& templates) { return generator::render_sum(part, out, architecture, templates); });
}

PlainLaunch make_sum_launch(const SumCall& call, const Architecture& architecture, PlainKernels& kernels) {
  const generator::SumArguments arguments = sum_arguments(call);
  const generator::PlainKernel& kernel = sum_kernel(call.parts[0].dtype, call.out->dtype, architecture, kernels);
  const std::int64_t rows_of_block = kernel.threads >> arguments.row_lanes_log2;
  PlainLaunch made = plain_launch(kernel, ceil_quotient(arguments.rows, rows_of_block), "out");
  made.launch.write_argument(0, arguments);
  return made;
}

}  // namespace flashjit::runtime
