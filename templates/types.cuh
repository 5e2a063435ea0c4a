// SPDX-License-Identifier: Apache-2.0
// The few types that device code here is written in. Nothing comes from a toolkit header.
#pragma once

using uint32 = unsigned int;
using int64 = long long;
using SmemAddress = unsigned int;  // a 32-bit address in the shared window

// The 16-bit element types. In registers two of them travel in one uint32, the lower index in the lower half.
struct Half {};
struct BFloat16 {};

// Hardware barriers beside number 0, which is the whole block's.
enum class NamedBarrier : uint32 { early_arrived = 1, late_arrived = 2 };

enum class Pipeline { serial, overlap, rotate };

constexpr int kWarpSize = 32;
constexpr int kChunkBytes = 16;  // what one cp.async moves and one ldmatrix lane addresses
constexpr int kChunkElements = 8;

template <bool kValue>
struct Bool {
  static constexpr bool value = kValue;
};

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
