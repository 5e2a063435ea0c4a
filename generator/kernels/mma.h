// SPDX-License-Identifier: Apache-2.0
// What the host knows of all kernels of the mma.sync family.
#pragma once

namespace flashjit::generator {

inline constexpr int kWarpSize = 32;
inline constexpr int kElementBytes = 2;

// Head dims inside the kernels: mma.sync takes 16 columns at a time.
constexpr int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace flashjit::generator
