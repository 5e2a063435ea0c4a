// SPDX-License-Identifier: Apache-2.0
// Rows of 16 bits made e4m3: turned by their positions (rotary embedding), rotated (random signs and a Hadamard
// matrix), multiplied by a reciprocal scale. A warp has 16 rows of a head in registers, as the operand of mma.sync lies
// there: lane 4 g + t has chunks t, t + 4, ... of rows g and g + 8. A product by a matrix of 1 and -1 adds up over what
// four lanes have, so that no element is shuffled; all other steps of the Hadamard matrix are sums in a lane.
#pragma once

#include "abi.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/special_registers.cuh"
#include "tile/octet.cuh"
#include "tile/rotary.cuh"
#include "types.cuh"

// Where scales come from: from memory, from the maxima of a launch before, or from the thread block's rows.
enum class ScalesFrom { given, maxima, rows };

// Table: of the elements of sines and cosines.
template <class Element_, int kHeadDim_, bool kRotates_, Rotary kRotary_, class Table_, ScalesFrom kScales_>
struct QuantizeConfig {
  using Element = Element_;
  using Table = Table_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kRotates = kRotates_;
  static constexpr Rotary kRotary = kRotary_;
  static constexpr ScalesFrom kScales = kScales_;
};

struct QuantizeShared {
  float of_warps[kQuantizeWarps];
};

constexpr int kQuadLanes = 4;
constexpr int kRowsOfLane = 2;

// Rows [begin, end) of a head of a batch entry.
struct HeadRows {
  int batch, head, block;
  int begin, end;

  __device__ __forceinline__ HeadRows(const QuantizeArguments& args, uint32 index) {
    const uint32 heads = static_cast<uint32>(args.num_heads), blocks = static_cast<uint32>(args.blocks_of_head);
    head = static_cast<int>(index % heads), index /= heads;
    block = static_cast<int>(index % blocks), batch = static_cast<int>(index / blocks);
    begin = block * args.rows_of_block;
    end = min(begin + args.rows_of_block, args.seqlen);
  }
  __device__ __forceinline__ int64 in(const RowStrides& strides) const {
    return batch * strides.batch + head * strides.head;
  }
};

__device__ constexpr float inverse_root(int power_of_two) {
  return power_of_two == 1 ? 1.0f : power_of_two == 2 ? 0.70710678f : 0.5f * inverse_root(power_of_two / 4);
}

// The part of the Hadamard matrix that is the other operand: of the 16 elements that a row's four lanes give, four
// neighbours each. Element e of lane t is bits 0, 1 of its place in the row, from e, and bits 3, 4, from t.
template <class Element, int kPart>
struct QuadHadamard {
  // Of both halves of the columns.
  uint32 b[2][2];

  __device__ __forceinline__ explicit QuadHadamard(int lane) {
    const int t = lane % kQuadLanes, column = lane / kQuadLanes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int to = place(column / 2, 2 * half + column % 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) b[half][i] = sign(place(t, 2 * i), to) | sign(place(t, 2 * i + 1), to) << 16;
    }
  }

 private:
  static __device__ __forceinline__ int place(int t, int e) { return t << 2 | e; }
  static __device__ __forceinline__ uint32 one(Half) { return 0x3c00; }
  static __device__ __forceinline__ uint32 one(BFloat16) { return 0x3f80; }
  // In parts of 16 elements the upper two lanes have another part than the lower ones.
  static __device__ __forceinline__ uint32 sign(int from, int to) {
    constexpr int kBits = kPart >= 32 ? 15 : 7;
    if (((from ^ to) & ~kBits) != 0) return 0;
    return one(Element{}) | static_cast<uint32>(__popc(from & to & kBits) & 1) << 15;
  }
};

// A warp's 16 rows.
template <class Config>
class RowTile {
  using Element = typename Config::Element;
  static constexpr int kChunks = Config::kHeadDim / kChunkElements;
  static constexpr int kGroups = ceil_div(kChunks, kQuadLanes);  // chunks of a lane
  static constexpr int kPart = power_of_two_in(Config::kHeadDim, kQuantizeMaxHeadDim);
  static constexpr float kLargestFloat = 3.40282347e38f;

 public:
  // What values are to be multiplied by to be the rotated row's.
  static constexpr float kNorm = Config::kRotates ? inverse_root(kPart) : 1.0f;

  __device__ __forceinline__ RowTile(const QuantizeArguments& args_, const HeadRows& rows_)
      : args(args_), rows(rows_), lane(ptx::tid_x() % kWarpSize), t(lane % kQuadLanes) {}

  // From this row on. Behind the last row that one is read again, and of chunks that a row lacks others: either has no
  // maximum of its own, and is not stored.
  __device__ __forceinline__ void load(int first_row) {
    first = first_row;
#pragma unroll
    for (int half = 0; half < kRowsOfLane; ++half) {
      const int row = min(row_of(half), rows.end - 1);
      const char* const from = args.x + rows.in(args.x_strides) + row * args.x_strides.row;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        raw[group][half] = ptx::ld_global(from + chunk(group) * kChunkBytes);
      if constexpr (Config::kRotary != Rotary::none) turn(half, from, row);
    }
  }
  // Makes numbers of what was loaded.
  __device__ __forceinline__ void finish() {
    if constexpr (Config::kRotates) {
      rotate();
    } else {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int half = 0; half < kRowsOfLane; ++half) value[group][half] = Octets<Element>::of(raw[group][half]);
    }
  }
  // The largest magnitude of what the lane has; NaN counts for none.
  __device__ __forceinline__ float largest() const {
    float found = 0.0f;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int half = 0; half < kRowsOfLane; ++half)
#pragma unroll
        for (float x : value[group][half].x) found = fmaxf(found, fabsf(x));
    return fminf(found * kNorm, kLargestFloat);
  }
  __device__ __forceinline__ void store(float factor) const {
#pragma unroll
    for (int half = 0; half < kRowsOfLane; ++half) {
      if (row_of(half) >= rows.end) continue;
      char* const to = args.out + rows.in(args.out_strides) + row_of(half) * args.out_strides.row;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (!has(group)) continue;
        const float(&x)[kChunkElements] = value[group][half].x;
        const auto four = [&](int i) {
          return ptx::cvt_rn_satfinite_e4m3x4(x[i] * factor, x[i + 1] * factor, x[i + 2] * factor, x[i + 3] * factor);
        };
        ptx::st_global(to + chunk(group) * kChunkElements, four(0), four(4));
      }
    }
  }

 private:
  __device__ __forceinline__ int row_of(int half) const { return first + lane / kQuadLanes + half * 8; }
  __device__ __forceinline__ bool has(int group) const {
    return kChunks % kQuadLanes == 0 || group * kQuadLanes + t < kChunks;
  }
  // Head dims are multiples of two chunks: of four the last group may lack the upper two.
  __device__ __forceinline__ int chunk(int group) const { return group * kQuadLanes + (has(group) ? t : t - 2); }

  // Neighbours that turn are in one chunk; of halves the other chunk, which another lane may have, is read beside it.
  __device__ __forceinline__ void turn(int half, const char* from, int row) {
    const int64 token = static_cast<int64>(rows.batch) * args.seqlen + row;
    const TokenNumbers& given = args.rotary.position_of_token;
    const Angles<typename Config::Table> angles(args.rotary,
                                                given.first != nullptr ? number_of_token(given, token) : row);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int own = chunk(group);
      if (own >= 2 * args.turned) continue;
      Octet x = Octets<Element>::of(raw[group][half]);
      if constexpr (Config::kRotary == Rotary::halves) {
        const bool is_second = own >= args.turned;
        const int other = is_second ? own - args.turned : own + args.turned, pairs = min(own, other);
        turn_half(x, Octets<Element>::load(from + other * kChunkBytes), angles.cosine(pairs), angles.sine(pairs),
                  is_second);
      } else {
        turn_neighbours(x, angles.cosine(own / 2), angles.sine(own / 2), own % 2 == 1);
      }
      raw[group][half] = Octets<Element>::to_pairs(x);
    }
  }

  // Signs, then bits 0, 1, 3, 4 of places in a row by a product, bit 2 in the chunk, the others between chunks.
  __device__ __forceinline__ void rotate() {
    const QuadHadamard<Element, kPart> hadamard(lane);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      rotate_quads(group, hadamard);
#pragma unroll
      for (int half = 0; half < kRowsOfLane; ++half)
#pragma unroll
        for (int i = 0; i < kChunkElements / 2; ++i)
          add_up(value[group][half].x[i], value[group][half].x[i + kChunkElements / 2]);
    }
    constexpr int kGroupsOfPart = kPart / (kQuadLanes * kChunkElements);
#pragma unroll
    for (int step = 1; step < kGroupsOfPart; step *= 2)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int i = 0; i < kRowsOfLane * kChunkElements && (group & step) == 0; ++i)
          add_up(value[group][i / kChunkElements].x[i % kChunkElements],
                 value[group + step][i / kChunkElements].x[i % kChunkElements]);
  }
  __device__ __forceinline__ void rotate_quads(int group, const QuadHadamard<Element, kPart>& hadamard) {
    const uint32 signs = args.signs[group] >> (chunk(group) % kQuadLanes * kChunkElements);
    uint32 pairs[kRowsOfLane][4];
#pragma unroll
    for (int half = 0; half < kRowsOfLane; ++half) {
      const ptx::Chunk& of = raw[group][half];
      pairs[half][0] = of.x ^ flips(signs), pairs[half][1] = of.y ^ flips(signs >> 2);
      pairs[half][2] = of.z ^ flips(signs >> 4), pairs[half][3] = of.w ^ flips(signs >> 6);
    }
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
      const uint32 a[4] = {pairs[0][2 * quad], pairs[1][2 * quad], pairs[0][2 * quad + 1], pairs[1][2 * quad + 1]};
#pragma unroll
      for (int columns = 0; columns < 2; ++columns) {
        float sums[4] = {};
        ptx::mma(Element{}, sums, a, hadamard.b[columns][0], hadamard.b[columns][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) value[group][i / 2].x[4 * quad + 2 * columns + i % 2] = sums[i];
      }
    }
  }
  // Of a pair's signs, by two bits.
  static __device__ __forceinline__ uint32 flips(uint32 bits) { return (bits & 1) << 15 | (bits & 2) << 30; }
  static __device__ __forceinline__ void add_up(float& x, float& y) {
    const float sum = x + y;
    y = x - y, x = sum;
  }

  const QuantizeArguments& args;
  const HeadRows& rows;
  const int lane, t;
  int first = 0;
  ptx::Chunk raw[kGroups][kRowsOfLane];
  Octet value[kGroups][kRowsOfLane];
};

// What the kernels of a pass have in common.
template <class Config>
class QuantizeRows {
 public:
  __device__ __forceinline__ QuantizeRows(const QuantizeArguments& args_, QuantizeShared& shared_)
      : args(args_), shared(shared_), thread(ptx::tid_x()), warp(thread / kWarpSize) {}

  // Writes a thread block's rows.
  __device__ __forceinline__ void run() const {
    const HeadRows rows(args, ptx::ctaid_x());
    RowTile<Config> tile(args, rows);
    if constexpr (Config::kScales == ScalesFrom::rows) {
      const float scale = scale_of(block_largest(largest_of(tile, rows)));
      if (thread == 0) ptx::st_global(place_of_scale(rows), scale);
      store_all(tile, rows, scale);
    } else {
      const int first = first_row(rows);
      if (first < rows.end) tile.load(first);
      const float scale = scale_before(rows);
      if (first < rows.end) tile.finish();
      store_all(tile, rows, scale);
    }
  }
  // Finds the largest magnitude of a share of what has a scale.
  __device__ __forceinline__ void find_largest() const {
    const int share = static_cast<int>(ptx::ctaid_x() % static_cast<uint32>(args.shares));
    const uint32 owner = ptx::ctaid_x() / static_cast<uint32>(args.shares);
    const uint32 heads = static_cast<uint32>(args.num_heads);
    float largest = 0.0f;
#pragma unroll 1
    for (int block = share; block < args.blocks_of_a_scale; block += args.shares) {
      const uint32 in_batch = owner / heads * static_cast<uint32>(args.blocks_of_head) + static_cast<uint32>(block);
      const HeadRows rows(args, args.is_of_head != 0 ? in_batch * heads + owner % heads : static_cast<uint32>(block));
      RowTile<Config> tile(args, rows);
      largest = fmaxf(largest, largest_of(tile, rows));
    }
    largest = block_largest(largest);
    if (thread == 0) ptx::st_global(args.maxima + ptx::ctaid_x(), largest);
  }

 private:
  static constexpr float kLargest = 448.0f;                 // of e4m3
  static constexpr float kSmallestScale = 1.17549435e-38f;  // a normal number, so that its reciprocal is finite

  __device__ __forceinline__ int first_row(const HeadRows& rows) const { return rows.begin + warp * kQuantizeTileRows; }
  __device__ __forceinline__ int step() const { return args.warps * kQuantizeTileRows; }

  // The warp's tiles one after the other; the last one stays.
  __device__ __forceinline__ float largest_of(RowTile<Config>& tile, const HeadRows& rows) const {
    float largest = 0.0f;
#pragma unroll 1
    for (int row = first_row(rows); row < rows.end; row += step()) {
      tile.load(row);
      tile.finish();
      largest = fmaxf(largest, tile.largest());
    }
    return largest;
  }
  // What a warp had, unless that was the first or the last of several tiles.
  __device__ __forceinline__ void store_all(RowTile<Config>& tile, const HeadRows& rows, float scale) const {
    const bool is_loaded = rows.end - rows.begin <= step();
    const float factor = RowTile<Config>::kNorm * __fdiv_rn(1.0f, scale);
#pragma unroll 1
    for (int row = first_row(rows); row < rows.end; row += step()) {
      if (!is_loaded) {
        tile.load(row);
        tile.finish();
      }
      tile.store(factor);
    }
  }

  // Of all threads, for all.
  __device__ __forceinline__ float block_largest(float largest) const {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
      largest = fmaxf(largest, ptx::shfl_xor(largest, distance));
    if (thread % kWarpSize == 0) shared.of_warps[warp] = largest;
    ptx::bar_sync();
    for (int i = 0; i < args.warps; ++i) largest = fmaxf(largest, shared.of_warps[i]);
    return largest;
  }
  static __device__ __forceinline__ float scale_of(float largest) {
    return largest == 0.0f ? 1.0f : fmaxf(__fdiv_rn(largest, kLargest), kSmallestScale);
  }
  __device__ __forceinline__ char* place_of_scale(const HeadRows& rows) const {
    return args.scale + rows.in(args.scale_strides) + rows.block * args.scale_strides.row;
  }
  // That was given, or that all thread blocks that share it make of the same maxima; the first of them writes it.
  __device__ __forceinline__ float scale_before(const HeadRows& rows) const {
    if constexpr (Config::kScales == ScalesFrom::given) return ptx::ld_global_float(place_of_scale(rows));
    const int owner = args.is_of_head != 0 ? rows.batch * args.num_heads + rows.head : 0;
    const float* const maxima = args.maxima + static_cast<int64>(owner) * args.shares;
    float largest = 0.0f;
    for (int i = thread; i < args.shares; i += args.warps * kWarpSize)
      largest = fmaxf(largest, ptx::ld_global_float(maxima + i));
    const float scale = scale_of(block_largest(largest));
    if (thread == 0 && (args.is_of_head != 0 ? rows.block == 0 : ptx::ctaid_x() == 0))
      ptx::st_global(place_of_scale(rows), scale);
    return scale;
  }

  const QuantizeArguments& args;
  QuantizeShared& shared;
  const int thread, warp;
};

template <class Config>
struct LargestOfShares {
  const QuantizeArguments& args;
  QuantizeShared& shared;

  __device__ __forceinline__ void run() const { QuantizeRows<Config>(args, shared).find_largest(); }
};
