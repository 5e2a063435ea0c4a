// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/function_arguments.h"

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

// The address, then all strides in bytes, then all sizes.
void write_capture(const Tensor& tensor, std::byte* at) noexcept {
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  at = put(at, tensor.data);
  for (int dim = 0; dim < tensor.shape.size(); ++dim)
    at = put(at, tensor.shape[dim] > 1 ? tensor.strides[dim] * element : 0);
  for (const std::int64_t size : tensor.shape) at = put(at, static_cast<std::uint32_t>(size));
}
void write_capture(float number, std::byte* at) noexcept { put(at, number); }
void write_capture(std::int32_t number, std::byte* at) noexcept { put(at, number); }

}  // namespace

void write_function_arguments(const ForwardCall& call, const Function& function, std::byte* at) {
  at = put(at, generator::OffsetArguments{data_of(call.query_offsets), data_of(call.key_offsets)});
  for (std::size_t i = 0; i < function.captures().size(); ++i)
    std::visit([&](const auto& value) { write_capture(value, at + function.source()->offsets[i]); },
               function.captures()[i].value);
}

void write_function_arguments(const Tensor& tensor, std::byte* at) {
  write_capture(tensor, put(at, generator::OffsetArguments{}));
}

}  // namespace flashjit::runtime
