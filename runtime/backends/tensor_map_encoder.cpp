// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/tensor_map_encoder.h"

#include "flashjit/error.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/cuda/driver.h"

namespace flashjit::runtime {
namespace {

// The driver asks for 64 bytes of alignment; headers of CUDA 13 give the type more.
static_assert(sizeof(generator::TensorMap) == sizeof(CUtensorMap) && alignof(generator::TensorMap) == 64);

CUtensorMapDataType element_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::e4m3:
    case DType::e5m2:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
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
                  const void* address, DType dtype) {
  if (!driver.cuTensorMapEncodeTiled) {
    throw Error(ErrorCode::unsupported,
                "driver: must have cuTensorMapEncodeTiled for a variant of the hopper family, has not");
  }
  const auto unsigned_of = [](int value) { return static_cast<cuuint32_t>(value); };
  const cuuint32_t box_sizes[] = {unsigned_of(box.columns), unsigned_of(box.heads), unsigned_of(box.rows), 1, 1};
  const cuuint32_t element_steps[] = {1, 1, 1, 1, 1};
  const int row_bytes = box.columns * static_cast<int>(size_of(dtype));
  driver.check(driver.cuTensorMapEncodeTiled(map, element_of(dtype), unsigned_of(shape.rank),
                                             const_cast<void*>(address), shape.sizes, shape.strides, box_sizes,
                                             element_steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(row_bytes),
                                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
}

}  // namespace

const generator::TensorMap& TensorMapEncoder::encode(const Driver& driver, int place, const MapPlace& of) {
  Map& last = last_[place];
  const Tensor& tensor = *of.tensor;
  const Shape shape{tensor.dtype, of.ended ? ended_tensor_map_shape(tensor) : tensor_map_shape(tensor), of.box};
  const void* const address = of.ended ? ended_tensor_map_address(tensor) : tensor.data;
  auto* const map = reinterpret_cast<CUtensorMap*>(&last.map);
  const bool same_shape = last.made && shape == last.shape;
  if (same_shape && address == last.data) return last.map;
  last.made = false;
  if (same_shape && driver.cuTensorMapReplaceAddress)
    driver.check(driver.cuTensorMapReplaceAddress(map, const_cast<void*>(address)), "cuTensorMapReplaceAddress");
  else
    encode_whole(driver, map, shape.tensor, shape.box, address, tensor.dtype);
  last.shape = shape;
  last.data = address;
  last.made = true;
  return last.map;
}

}  // namespace flashjit::runtime
