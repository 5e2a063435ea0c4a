// SPDX-License-Identifier: Apache-2.0
// The few types that device code here is written in. Nothing comes from a toolkit header.
#pragma once

using uint32 = unsigned int;
using int64 = long long;
using uint64 = unsigned long long;
using SmemAddress = unsigned int;  // a 32-bit address in the shared window

// The 16-bit element types. In registers two of them travel in one uint32, the lower index in the lower half.
struct Half {};
struct BFloat16 {};
// Of 8 bits, as what is multiplied: four in a uint32. The last one: of two operands the first is of e4m3.
struct E4m3Element {
  static constexpr float kLargest = 448.0f;
};
struct E5m2Element {
  static constexpr float kLargest = 57344.0f;
};
struct E5m2BesideE4m3 {};
// f32, which only kernels beside those of attention read and write rows of.
struct Single {};

// Hardware barriers beside number 0, which is the whole block's. A kernel uses those of its family.
enum class NamedBarrier : uint32 {
  early_arrived = 1,
  late_arrived = 2,
  tile_done = 1,        // by the warps that share its rows, before the next one's keys come
  first_turn = 1,       // of up to four warpgroups, one each
  first_warpgroup = 5,  // likewise
  query_flipped = 1,    // for a negative scale, by the streams of large heads
  derivatives = 1,      // of the scores, by the warpgroups of a backward kernel
  first_stream = 1,     // of two, each by itself, of the backward kernels of large heads
};

enum class Pipeline { serial, overlap, rotate };

// The choices of the Hopper family: include/flashjit/variant.h explains them.
enum class Rescale { always, rare, lazy };
enum class OutputSlot { query, half, whole };
enum class GemmSoftmax { serial, two_stage, three_stage };
enum class PingPong { off, gemm, softmax };
enum class Scheduler { single, fixed, dynamic };

constexpr int kWarpSize = 32;
constexpr int kWarpgroupSize = 128;
constexpr int kWarpgroupRows = 64;  // of one wgmma
constexpr int kMmaRows = 16;        // of one mma.sync
constexpr int kChunkBytes = 16;     // what one cp.async moves and one ldmatrix lane addresses
constexpr int kChunkElements = 8;

__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
// The largest power of two, at most limit, that divides n.
__device__ constexpr int power_of_two_in(int n, int limit) {
  return n % limit == 0 ? limit : power_of_two_in(n, limit / 2);
}

template <bool kFirst, class First, class Second>
struct Choose {
  using type = First;
};
template <class First, class Second>
struct Choose<false, First, Second> {
  using type = Second;
};
