// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/tensor_map.h"

#include <algorithm>
#include <bit>

#include "runtime/call/tensor_dims.h"
#include "runtime/cuda/driver.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;  // bytes, exclusive: cuTensorMapEncodeTiled

// The driver asks for 64 bytes of alignment; headers of CUDA 13 give the type more.
static_assert(sizeof(generator::TensorMap) == sizeof(CUtensorMap) && alignof(generator::TensorMap) == 64);

// Elements, exclusive. The size is a power of two, and a call asks too often to divide.
std::int64_t max_stride_of(const Tensor& tensor) { return kMaxStride >> std::countr_zero(size_of(tensor.dtype)); }

// A stride of 0 reads the same row again and again, which tensor maps are not documented to do.
bool stride_fits(const Tensor& tensor, int dim, std::int64_t max_stride) {
  const std::int64_t elements = tensor.strides[dim];
  return tensor.shape[dim] == 1 || (elements > 0 && elements < max_stride);
}

void require_tensor_map(const char* name, const Tensor& tensor) {
  const auto refuse = [&](const std::string& message) {
    reject("{}: {} for a variant of the hopper family", name, message);
  };
  for (int dim = 0; dim < kRank; ++dim)
    if (tensor.shape[dim] == 0) refuse(fmt::format("{} must be at least 1, was 0,", kDimNames[dim]));
  const std::int64_t max_stride = max_stride_of(tensor);
  for (int dim = 0; dim < kRank - 1; ++dim)
    if (!stride_fits(tensor, dim, max_stride))
      refuse(fmt::format("the stride of {} must be from 1 to {} elements, was {},", kDimNames[dim], max_stride - 1,
                         tensor.strides[dim]));
}

CUtensorMapDataType element_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_32B;
}

void encode_whole(const Driver& driver, CUtensorMap* map, const TensorMapShape& shape, const TensorMapBox& box,
                  const Tensor& tensor) {
  if (!driver.cuTensorMapEncodeTiled) {
    throw Error(ErrorCode::unsupported,
                "driver: must have cuTensorMapEncodeTiled for a variant of the hopper family, has not");
  }
  const auto unsigned_of = [](int value) { return static_cast<cuuint32_t>(value); };
  const cuuint32_t box_sizes[kRank] = {unsigned_of(box.columns), unsigned_of(box.heads), unsigned_of(box.rows), 1};
  const cuuint32_t element_steps[kRank] = {1, 1, 1, 1};
  const int row_bytes = box.columns * static_cast<int>(size_of(tensor.dtype));
  driver.check(
      driver.cuTensorMapEncodeTiled(map, element_of(tensor.dtype), kRank, tensor.data, shape.sizes, shape.strides,
                                    box_sizes, element_steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(row_bytes),
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
}

}  // namespace

TensorMapBoxes tensor_map_boxes(const HopperVariant& variant, const generator::Plan& plan, int packed_heads_log2) {
  constexpr int kStoreRows = 16;  // of one warp
  const int heads = 1 << packed_heads_log2, kv_rows = variant.block_kv / variant.cluster;
  return {.q = {.columns = plan.panel_columns, .heads = heads, .rows = variant.block_q / heads},
          .k = {.columns = plan.panel_columns, .heads = 1, .rows = kv_rows},
          .v = {.columns = plan.panel_columns_v, .heads = 1, .rows = kv_rows},
          .out = {.columns = plan.panel_columns_v, .heads = heads, .rows = kStoreRows / heads}};
}

TensorMapShape tensor_map_shape(const Tensor& tensor) noexcept {
  const auto size = [&](int dim) { return static_cast<std::uint64_t>(tensor.shape[dim]); };
  const std::uint64_t element = size_of(tensor.dtype);
  // The view's stride of a dimension of size 1 may be anything, the map's may not.
  const auto stride = [&](int dim) {
    const std::int64_t elements = tensor.shape[dim] > 1 ? tensor.strides[dim] : tensor.shape[3];
    return static_cast<std::uint64_t>(elements) * element;
  };
  return {{size(3), size(2), size(1), size(0)}, {stride(2), stride(1), stride(0)}};
}

bool has_tensor_map(const Tensor& tensor) noexcept {
  for (int dim = 0; dim < kRank; ++dim)
    if (tensor.shape[dim] == 0) return false;
  const std::int64_t max_stride = max_stride_of(tensor);
  return stride_fits(tensor, 0, max_stride) && stride_fits(tensor, 1, max_stride) && stride_fits(tensor, 2, max_stride);
}

bool has_tensor_maps(const ForwardCall& call) noexcept {
  return std::all_of(call.operands.begin(), call.operands.end(), [](const Operand& operand) {
    return operand.role != Operand::Role::rows || has_tensor_map(*operand.tensor);
  });
}

void require_tensor_maps(const ForwardCall& call) {
  for (const Operand& operand : call.operands)
    if (operand.role == Operand::Role::rows) require_tensor_map(operand.name, *operand.tensor);
}

const generator::TensorMap& TensorMapEncoder::encode(const Driver& driver, int place, const Tensor& tensor,
                                                     const TensorMapBox& box) {
  Map& last = last_[place];
  const Shape shape{tensor.dtype, tensor_map_shape(tensor), box};
  auto* const map = reinterpret_cast<CUtensorMap*>(&last.map);
  if (last.made && shape == last.shape && driver.cuTensorMapReplaceAddress) {
    driver.check(driver.cuTensorMapReplaceAddress(map, tensor.data), "cuTensorMapReplaceAddress");
    return last.map;
  }
  last.made = false;
  encode_whole(driver, map, shape.tensor, shape.box, tensor);
  last.shape = shape;
  last.made = true;
  return last.map;
}

}  // namespace flashjit::runtime
