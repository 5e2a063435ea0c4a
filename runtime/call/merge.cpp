// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/merge.h"

#include <algorithm>
#include <bit>

#include "generator/arguments.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

using generator::kMostMergeParts;

constexpr int kChunkElements = 8;
constexpr int kMostRowLanes = 32;

// For messages, which operands keep.
struct PartNames {
  const char *out, *lse;
};
constexpr PartNames kPartNames[] = {
    {"parts[0].out", "parts[0].lse"},   {"parts[1].out", "parts[1].lse"},   {"parts[2].out", "parts[2].lse"},
    {"parts[3].out", "parts[3].lse"},   {"parts[4].out", "parts[4].lse"},   {"parts[5].out", "parts[5].lse"},
    {"parts[6].out", "parts[6].lse"},   {"parts[7].out", "parts[7].lse"},   {"parts[8].out", "parts[8].lse"},
    {"parts[9].out", "parts[9].lse"},   {"parts[10].out", "parts[10].lse"}, {"parts[11].out", "parts[11].lse"},
    {"parts[12].out", "parts[12].lse"}, {"parts[13].out", "parts[13].lse"}, {"parts[14].out", "parts[14].lse"},
    {"parts[15].out", "parts[15].lse"}};
static_assert(std::size(kPartNames) == kMostMergeParts);

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

bool same_view(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

void add_part(MergeCall& call, const PartNames& names, const Partial& part) {
  const Tensor& out = *call.out;
  check_rows(names.out, part.out);
  if (part.out.dtype != call.parts[0].out.dtype)
    reject("{}: dtype must be {} like that of parts[0].out, was {}", names.out, to_string(call.parts[0].out.dtype),
           to_string(part.out.dtype));
  for (int dim = 0; dim < kRank; ++dim) require_size(names.out, part.out, kRowsRules, dim, out.shape[dim], "out");
  check_lse(names.lse, part.lse, out);
  if (!same_view(part.out, out)) add_operand(call.operands, names.out, part.out, Operand::Role::rows, false);
  if (!call.lse || !same_view(part.lse, *call.lse))
    add_operand(call.operands, names.lse, part.lse, Operand::Role::lse, false);
}

generator::RowStrides byte_strides(const Tensor& rows) {
  const auto bytes = static_cast<std::int64_t>(size_of(rows.dtype));
  return {rows.strides[batch_dim] * bytes, rows.strides[seqlen_dim] * bytes, rows.strides[heads_dim] * bytes};
}
generator::RowStrides byte_strides_of_lse(const Tensor& lse) {
  constexpr std::int64_t kBytes = sizeof(float);
  return {lse.strides[0] * kBytes, lse.strides[2] * kBytes, lse.strides[1] * kBytes};
}

generator::MergeArguments arguments_of(const MergeCall& call) {
  const Tensor& out = *call.out;
  generator::MergeArguments arguments{};
  for (const Partial& part : call.parts)
    arguments.parts[arguments.count++] = {static_cast<const char*>(part.out.data),
                                          static_cast<const char*>(part.lse.data), byte_strides(part.out),
                                          byte_strides_of_lse(part.lse)};
  arguments.out = static_cast<char*>(out.data);
  arguments.out_strides = byte_strides(out);
  if (call.lse) {
    arguments.lse = static_cast<char*>(call.lse->data);
    arguments.lse_strides = byte_strides_of_lse(*call.lse);
  }
  arguments.rows = out.shape[batch_dim] * out.shape[seqlen_dim] * out.shape[heads_dim];
  arguments.seqlen = static_cast<int>(out.shape[seqlen_dim]);
  arguments.num_heads = static_cast<int>(out.shape[heads_dim]);
  arguments.chunks = static_cast<int>(out.shape[head_dim_dim] / kChunkElements);
  const auto lanes = std::min<unsigned>(std::bit_ceil(static_cast<unsigned>(arguments.chunks)), kMostRowLanes);
  arguments.row_lanes_log2 = std::countr_zero(lanes);
  return arguments;
}

}  // namespace

Operands operands_of_first(const Partial& part) {
  Operands operands;
  check_rows(kPartNames[0].out, part.out);
  add_operand(operands, kPartNames[0].out, part.out, Operand::Role::rows, false);
  return operands;
}

MergeCall validate_merge(std::span<const Partial> parts, const Tensor& out, const std::optional<Tensor>& lse) {
  check_rows("out", out);
  const std::int64_t head_dim = out.shape[head_dim_dim];
  if (head_dim == 0 || head_dim % kChunkElements != 0)
    reject("out: head_dim must be a multiple of {}, was {}", kChunkElements, head_dim);
  if (lse) check_lse("lse", *lse, out);
  MergeCall call{{}, parts, &out, lse ? &*lse : nullptr};
  for (std::size_t i = 0; i < parts.size(); ++i) add_part(call, kPartNames[i], parts[i]);
  add_operand(call.operands, "out", out, Operand::Role::rows, true);
  if (call.lse) add_operand(call.operands, "lse", *call.lse, Operand::Role::lse, true);
  return call;
}

PlainLaunch make_merge_launch(const MergeCall& call, const Architecture& architecture,
                              const generator::Templates& templates) {
  constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;
  const generator::MergeArguments arguments = arguments_of(call);
  PlainLaunch made{generator::render_merge(call.parts[0].out.dtype, call.out->dtype, architecture, templates), {}};
  made.launch.write_argument(0, arguments);
  made.launch.argument_bytes = made.kernel.argument_bytes;
  made.launch.threads = made.kernel.threads;
  const std::int64_t rows_of_block = made.kernel.threads >> arguments.row_lanes_log2;
  made.launch.blocks = (arguments.rows + rows_of_block - 1) / rows_of_block;
  if (made.launch.blocks > kMaxBlocks)
    reject("out: must give at most {} thread blocks, gave {}", kMaxBlocks, made.launch.blocks);
  return made;
}

}  // namespace flashjit::runtime
