// SPDX-License-Identifier: Apache-2.0
// From DLPack's tensors, which callers through C have, to views.
#pragma once

#include <dlpack/dlpack.h>

#include <optional>
#include <string>

#include "flashjit/tensor.h"

namespace flashjit::runtime {

// Where an engine takes tensors from. any: only the tensor's type counts, and nothing reads its memory.
enum class MemoryKind { device, host, reference, any };

std::optional<DType> to_dtype(DLDataType dtype) noexcept;
// For messages: as DType has it, and else "int16", "float64", "float32x4".
std::string to_string(DLDataType dtype);

// The view that the tensor describes; whether attention can take it, validate_inputs and validate_out say. wanted: its
// dtypes, for the message: "f16 or bf16". Throws Error(invalid_argument) for what is no view: null, in another kind of
// memory, of no DType, or with more dimensions than Dims has.
Tensor to_tensor(const char* name, const DLTensor* tensor, MemoryKind kind, const char* wanted);
// Likewise of e4m3 or e5m2, or of bytes, which libraries without that dtype have in its place.
Tensor to_8_bits(const char* name, const DLTensor* tensor, MemoryKind kind, DType of_bytes);

}  // namespace flashjit::runtime
