// SPDX-License-Identifier: Apache-2.0
// What a function is launched with: the offsets of its sequences and its captures.
#pragma once

#include <cstddef>

#include "runtime/call/validate.h"

namespace flashjit::runtime {

// As templates/function/text.cuh and the struct of the function have it.
void write_function_arguments(const ForwardCall& call, const Function& function, std::byte* at);
// One of the library's, whose capture is the tensor. Its positions have no offsets.
void write_function_arguments(const ForwardCall& call, const Tensor& tensor, std::byte* at);

}  // namespace flashjit::runtime
