// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "flashjit/tensor.h"

namespace flashjit::runtime {

// Bytes of packed memory of this shape. Throws Error(invalid_argument), which names the argument, for a negative size
// and for more bytes than memory can have.
std::size_t byte_count(const char* name, DType dtype, const Dims& shape);

}  // namespace flashjit::runtime
