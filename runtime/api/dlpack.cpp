// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/dlpack.h"

#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr std::uint8_t kBool = 6;               // kDLBool, which DLPack has had since version 0.8
constexpr std::uint8_t kE4m3 = 10, kE5m2 = 12;  // kDLFloat8_e4m3fn and kDLFloat8_e5m2, since 1.1

bool is(DLDataType dtype, std::uint8_t code, int bits) noexcept {
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

const char* name_of(std::uint8_t code) noexcept {
  switch (code) {
    case kDLInt:
      return "int";
    case kDLUInt:
      return "uint";
    case kDLFloat:
      return "float";
    case kDLBfloat:
      return "bfloat";
    case kDLComplex:
      return "complex";
    case kBool:
      return "bool";
    default:
      return nullptr;  // types that DLPack got later
  }
}

std::string name_of(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
      return "host memory (kDLCPU)";
    case kDLCUDA:
      return "the memory of a GPU (kDLCUDA)";
    case kDLCUDAHost:
      return "pinned host memory (kDLCUDAHost)";
    case kDLCUDAManaged:
      return "managed memory (kDLCUDAManaged)";
    default:
      return fmt::format("memory of DLPack's device type {}", static_cast<int>(device.device_type));
  }
}

void require_memory(const char* name, DLDevice device, MemoryKind kind) {
  if (kind == MemoryKind::any) return;
  if (kind != MemoryKind::device) {
    if (device.device_type == kDLCPU) return;
    reject("{}: must be in host memory (kDLCPU) for {}, was in {}", name,
           kind == MemoryKind::reference ? "the reference" : "an engine that emulates", name_of(device));
  }
  if (device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged) return;
  reject("{}: must be in the memory of a GPU (kDLCUDA), was in {}; copy it there, or use an engine that emulates", name,
         name_of(device));
}

void require_extents(const char* name, const DLTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > Dims::kMaxRank)
    reject("{}: ndim must be from 0 to {}, was {}", name, Dims::kMaxRank, tensor.ndim);
  if (tensor.ndim > 0 && !tensor.shape) reject("{}: shape must point to {} sizes, was null", name, tensor.ndim);
}

void* data_of(const char* name, const DLTensor& tensor) {
  if (!tensor.data) return nullptr;
  std::uintptr_t address = 0;
  if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(tensor.data), tensor.byte_offset, &address)) {
    reject("{}: byte_offset must stay within the address space from data {}, was {}", name, fmt::ptr(tensor.data),
           tensor.byte_offset);
  }
  return reinterpret_cast<void*>(address);
}

}  // namespace

std::optional<DType> to_dtype(DLDataType dtype) noexcept {
  if (is(dtype, kDLFloat, 16)) return DType::f16;
  if (is(dtype, kDLBfloat, 16)) return DType::bf16;
  if (is(dtype, kDLFloat, 32)) return DType::f32;
  if (is(dtype, kDLInt, 32)) return DType::i32;
  if (is(dtype, kDLInt, 64)) return DType::i64;
  if (is(dtype, kBool, 8)) return DType::boolean;
  if (is(dtype, kE4m3, 8)) return DType::e4m3;
  if (is(dtype, kE5m2, 8)) return DType::e5m2;
  if (is(dtype, kDLFloat, 64)) return DType::f64;
  return std::nullopt;
}

std::string to_string(DLDataType dtype) {
  if (const auto known = to_dtype(dtype)) return flashjit::to_string(*known);
  const std::string lanes = dtype.lanes == 1 ? "" : fmt::format("x{}", dtype.lanes);
  const std::string width = fmt::format("{}{}", dtype.bits, lanes);
  const char* code = name_of(dtype.code);
  return code ? code + width : fmt::format("DLPack's type {} of {} bits", dtype.code, width);
}

Tensor to_tensor(const char* name, const DLTensor* tensor, MemoryKind kind, const char* wanted) {
  if (!tensor) reject("{}: must point to a tensor, was null", name);
  require_memory(name, tensor->device, kind);
  require_extents(name, *tensor);
  const auto dtype = to_dtype(tensor->dtype);
  if (!dtype) reject("{}: dtype must be {}, was {}", name, wanted, to_string(tensor->dtype));
  void* const data = data_of(name, *tensor);
  const auto rank = static_cast<std::size_t>(tensor->ndim);
  const Dims shape(tensor->shape, rank);
  return tensor->strides ? Tensor(data, *dtype, shape, Dims(tensor->strides, rank)) : Tensor(data, *dtype, shape);
}

Tensor to_8_bits(const char* name, const DLTensor* tensor, MemoryKind kind, DType of_bytes) {
  constexpr const char* kWanted = "e4m3 or e5m2, or uint8 in its place";
  if (!tensor || !is(tensor->dtype, kDLUInt, 8)) return to_tensor(name, tensor, kind, kWanted);
  DLTensor bytes = *tensor;
  bytes.dtype.code = of_bytes == DType::e5m2 ? kE5m2 : kE4m3;
  return to_tensor(name, &bytes, kind, kWanted);
}

}  // namespace flashjit::runtime
