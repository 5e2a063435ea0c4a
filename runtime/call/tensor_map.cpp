// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/tensor_map.h"

#include <algorithm>
#include <bit>

#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr int kSwizzledRows = 8;                            // after which the swizzle repeats
constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;  // bytes, exclusive: cuTensorMapEncodeTiled
constexpr std::uint64_t kStrideBytes = 16;                  // of which strides are multiples: likewise

// Elements, exclusive. The size is a power of two, and a call asks too often to divide.
std::int64_t max_stride_of(const Tensor& tensor) { return kMaxStride >> std::countr_zero(size_of(tensor.dtype)); }

// A stride of 0 reads the same row again and again, which tensor maps are not documented to do.
bool stride_fits(const Tensor& tensor, int dim, std::int64_t max_stride) {
  const std::int64_t elements = tensor.strides[dim];
  return tensor.shape[dim] == 1 || (elements > 0 && elements < max_stride);
}

// To the copy engine.
bool is_described(const Operand& operand) {
  return operand.role == Operand::Role::rows || operand.role == Operand::Role::columns;
}

// What one copy brings of a page has to begin where the swizzle of shared memory does.
bool has_boxes(const ForwardCall& call) noexcept {
  return !call.problem.paged || call.k->shape[seqlen_dim] % kSwizzledRows == 0;
}

}  // namespace

TensorMapBoxes tensor_map_boxes(const ForwardCall& call, const HopperVariant& variant, const generator::Plan& plan,
                                int packed_heads_log2) {
  constexpr int kStoreRows = 16;  // of one warp
  const int pack = 1 << packed_heads_log2;
  // Rows of a tile, and of a warp, that are neighbours: heads of a query first.
  const auto rows = [pack](int columns, int count) {
    const int heads = std::min(pack, count);
    return TensorMapBox{.columns = columns, .heads = heads, .rows = count / heads};
  };
  // Of a page those that a block has as many of, in whole numbers.
  const int share = variant.block_kv / variant.cluster;
  const auto of_page = [&](int most) { return call.problem.paged ? std::min(page_box_rows(*call.k), most) : most; };
  const int kv_rows = call.problem.paged ? of_page(share & -share) : share;
  const int rows_of_values = call.problem.values_transposed ? call.problem.head_dim_v
                             : plan.box_keys_of_values == 0 ? kv_rows
                                                            : of_page(plan.box_keys_of_values);
  return {.q = rows(plan.box_columns.q, variant.block_q),
          .k = {.columns = plan.box_columns.k, .heads = 1, .rows = kv_rows},
          .v = {.columns = plan.box_columns.v, .heads = 1, .rows = rows_of_values},
          .out = rows(plan.box_columns.out, kStoreRows)};
}

TensorMapShape tensor_map_shape(const Tensor& tensor) noexcept {
  const auto size = [&](int dim) { return static_cast<std::uint64_t>(tensor.shape[dim]); };
  const std::uint64_t element = size_of(tensor.dtype);
  const Dim columns = contiguous_dim(tensor), rows = row_dim(tensor);
  // The view's stride of a dimension of size 1 may be anything, the map's may not.
  const std::uint64_t row = (size(columns) * element + kStrideBytes - 1) / kStrideBytes * kStrideBytes;
  const auto stride = [&](int dim) {
    return tensor.shape[dim] > 1 ? static_cast<std::uint64_t>(tensor.strides[dim]) * element : row;
  };
  return {kRank,
          {size(columns), size(heads_dim), size(rows), size(batch_dim)},
          {stride(heads_dim), stride(rows), stride(batch_dim)}};
}

TensorMapShape ended_tensor_map_shape(const Tensor& tensor) noexcept {
  const TensorMapShape whole = tensor_map_shape(tensor);
  const std::uint64_t rows = whole.sizes[2];
  return {kRank + 1,
          {whole.sizes[0], whole.sizes[1], rows, rows + 1, whole.sizes[3]},
          {whole.strides[0], whole.strides[1], whole.strides[1], whole.strides[2]}};
}

const void* ended_tensor_map_address(const Tensor& tensor) noexcept {
  const TensorMapShape whole = tensor_map_shape(tensor);
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(tensor.data) -
                                       whole.sizes[2] * whole.strides[1]);
}

void require_tensor_map(const char* name, const Tensor& tensor) {
  const auto refuse = [&](const std::string& message) {
    reject("{}: {} for a variant of the hopper family", name, message);
  };
  for (int dim = 0; dim < kRank; ++dim)
    if (tensor.shape[dim] == 0) refuse(fmt::format("{} must be at least 1, was 0,", kDimNames[dim]));
  const std::int64_t max_stride = max_stride_of(tensor);
  for (const Dim dim : {batch_dim, row_dim(tensor), heads_dim})
    if (!stride_fits(tensor, dim, max_stride))
      refuse(fmt::format("the stride of {} must be from 1 to {} elements, was {},", kDimNames[dim], max_stride - 1,
                         tensor.strides[dim]));
}

bool has_tensor_map(const Tensor& tensor) noexcept {
  for (int dim = 0; dim < kRank; ++dim)
    if (tensor.shape[dim] == 0) return false;
  const std::int64_t max_stride = max_stride_of(tensor);
  return stride_fits(tensor, batch_dim, max_stride) && stride_fits(tensor, row_dim(tensor), max_stride) &&
         stride_fits(tensor, heads_dim, max_stride);
}

bool has_tensor_maps(const ForwardCall& call) noexcept {
  return has_boxes(call) && std::all_of(call.operands.begin(), call.operands.end(), [](const Operand& operand) {
           return !is_described(operand) || has_tensor_map(*operand.tensor);
         });
}

void require_tensor_maps(const ForwardCall& call) {
  if (!has_boxes(call))
    reject("k: page_size must be a multiple of {} for a variant of the hopper family, was {}", kSwizzledRows,
           call.k->shape[seqlen_dim]);
  for (const Operand& operand : call.operands)
    if (is_described(operand)) require_tensor_map(operand.name, *operand.tensor);
}

}  // namespace flashjit::runtime
