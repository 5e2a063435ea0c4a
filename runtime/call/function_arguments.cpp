// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/function_arguments.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "generator/arguments.h"

namespace flashjit::runtime {
namespace {

const int* data_of(const Tensor* offsets) noexcept {
  return offsets ? static_cast<const int*>(offsets->data) : nullptr;
}

template <class Value>
std::byte* put(std::byte* at, const Value& value) noexcept {
  std::memcpy(at, &value, sizeof(value));
  return at + sizeof(value);
}

// Memory of the call that a kernel may read: so many bytes from there on are in one allocation.
constexpr std::uintptr_t kLargestElement = 8;
const void* readable(const ForwardCall& call) noexcept {
  for (const Operand& operand : call.operands)
    if (!operand.range.empty())
      return reinterpret_cast<const void*>(operand.range.begin / kLargestElement * kLargestElement);
  return nullptr;
}

// The address, then all strides in bytes, then all sizes. A tensor without elements has an address that can be read, as
// templates/function/tensor.cuh loads before it knows whether an index is inside.
void write_capture(const ForwardCall& call, const Tensor& tensor, std::byte* at) noexcept {
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  const bool is_empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  at = put(at, is_empty ? readable(call) : tensor.data);
  for (int dim = 0; dim < tensor.shape.size(); ++dim)
    at = put(at, tensor.shape[dim] > 1 ? tensor.strides[dim] * element : 0);
  for (const std::int64_t size : tensor.shape) at = put(at, static_cast<std::uint32_t>(size));
}
void write_capture(const ForwardCall&, float number, std::byte* at) noexcept { put(at, number); }
void write_capture(const ForwardCall&, std::int32_t number, std::byte* at) noexcept { put(at, number); }

}  // namespace

void write_function_arguments(const ForwardCall& call, const Function& function, std::byte* at) {
  at = put(at, generator::OffsetArguments{data_of(call.query_offsets), data_of(call.key_offsets)});
  for (std::size_t i = 0; i < function.captures().size(); ++i)
    std::visit([&](const auto& value) { write_capture(call, value, at + function.source()->offsets[i]); },
               function.captures()[i].value);
}

void write_function_arguments(const ForwardCall& call, const Tensor& tensor, std::byte* at) {
  write_capture(call, tensor, put(at, generator::OffsetArguments{}));
}

}  // namespace flashjit::runtime
