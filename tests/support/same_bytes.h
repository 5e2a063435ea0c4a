// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "flashjit/tensor.h"

namespace flashjit::tests {

// Bitwise: NaN equals NaN, and 0 does not equal -0.
inline bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.data(), b.data(), a.element_count() * size_of(a.dtype())) == 0;
}

}  // namespace flashjit::tests
