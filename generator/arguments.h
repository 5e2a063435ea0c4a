// SPDX-License-Identifier: Apache-2.0
// The launch arguments, as kernels declare them.
#pragma once

namespace flashjit::generator {
#include "templates/abi.cuh"
}  // namespace flashjit::generator
