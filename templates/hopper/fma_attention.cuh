// SPDX-License-Identifier: Apache-2.0
// One warp's arithmetic without tensor cores: its 4 or 8 query rows against keys and values in shared memory, with FFMA
// in f32. docs/kernels/decode.md, "Without tensor cores".
#pragma once

#include "attention/probability.cuh"
#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// x[i] of a lane l and x[0] of lane l ^ i * kDistance are parts of one sum, which the latter returns. One shuffle less
// than there are numbers.
template <int kDistance, int kCount>
__device__ __forceinline__ float sum_of_lanes(float (&x)[kCount]) {
#pragma unroll
  for (int step = kCount / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < step; ++i) x[i] += ptx::shfl_xor(x[i + step], step * kDistance);
  return x[0];
}

// How the lanes of a warp share rows and keys, or values. A key is spread over kLanes neighbouring lanes, a group, each
// with 16 bytes of it, so that a warp works on kGroups keys at once.
//
// A lane owns one row, and of each eight keys two, where there are 8 rows, or one, where there are 4: their scores are
// its own in the end. For that all lanes of a group need to multiply the dims that they have. In step i and register r
// a lane works on the key and the row that lane ^ (i * kRows + r) owns. Who owns what is linear in the bits of a lane's
// number, so that this is the lane's own key and row, changed by an exclusive or with a constant. So sums over lanes
// and probabilities travel by shuffles of constant distances, and no register is chosen by a lane's number.
template <int kRows_, class Tile_>
struct FmaLanes {
  using Tile = Tile_;
  static constexpr int kRows = kRows_;
  static constexpr int kChunks = Tile::kPanels * Tile::kChunksOfRow;
  static constexpr int kLanes = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  static constexpr int kGroups = kWarpSize / kLanes;
  static constexpr int kSteps = kLanes / kRows;
  // Of two neighbouring keys a lane owns so many.
  static constexpr int kOwned = kRows / 4;
  static constexpr bool kAllHaveDims = kLanes <= kChunks;

  // The row that a lane owns: its number times x, among polynomials over two elements modulo an irreducible one. Then
  // number ^ row, which is where the swizzle puts a lane's chunk of its row, differs in all lanes that read the query
  // together, so that these read from all banks.
  __device__ __forceinline__ static constexpr int owned_row(int lane) {
    const int twice = lane % kRows * 2;
    return twice < kRows ? twice : twice ^ (kRows + 3);
  }
  // The first lane that owns a row.
  __device__ __forceinline__ static constexpr int owner_of(int row) {
    return (row % 2 == 0 ? row : row ^ (kRows + 3)) / 2;
  }
  // Among eight keys the first one that a lane owns. Eight lanes, which read together, have two of these at most, by
  // a bit that is none of the lowest two of their numbers: they, too, read from all banks.
  __device__ __forceinline__ static constexpr int owned_key(int lane) {
    return lane / 8 * 2 + (kOwned == 1 ? lane / 4 % 2 : 0);
  }
  __device__ __forceinline__ static bool has_dims(int lane) { return kAllHaveDims || lane % kLanes < kChunks; }
  __device__ __forceinline__ static int chunk(int lane) {
    return kAllHaveDims ? lane % kLanes : min(lane % kLanes, kChunks - 1);
  }

  // Where a lane's own key has its chunk, and from there the chunk of its key in a step. A swizzle is linear, too, and
  // repeats after eight keys.
  __device__ __forceinline__ static uint32 offset(int lane) { return Tile::offset(owned_key(lane), chunk(lane)); }
  __device__ __forceinline__ static uint32 move(uint32 offset_of_lane, int eight, int step, int parity) {
    return (offset_of_lane ^ Tile::offset(owned_key(step * kRows) + parity, 0)) + 8 * eight * Tile::kRowBytes;
  }

  // A chunk as f32; zeros in the lanes that have no dims.
  template <class Element>
  __device__ __forceinline__ static void load(Element, float (&x)[kChunkElements], SmemAddress at, int lane) {
    ptx::Chunk chunk{0, 0, 0, 0};
    if (has_dims(lane)) chunk = ptx::ld_shared(at);
    ptx::cvt_x2(Element{}, chunk.x, x[0], x[1]);
    ptx::cvt_x2(Element{}, chunk.y, x[2], x[3]);
    ptx::cvt_x2(Element{}, chunk.z, x[4], x[5]);
    ptx::cvt_x2(Element{}, chunk.w, x[6], x[7]);
  }
};

// What a warp has of the output: a lane its dims, by the keys of its group.
template <class Lanes>
struct FmaOutput {
  static constexpr int kRows = Lanes::kRows;

  float x[kRows][kChunkElements];
  int lane;

  __device__ __forceinline__ explicit FmaOutput(int lane_) : lane(lane_) {
#pragma unroll
    for (auto& row : x)
#pragma unroll
      for (float& of_dim : row) of_dim = 0.0f;
  }

  // The row in x[r]. Lanes of the same dims have different ones, so that each of them adds up a part of the rows.
  __device__ __forceinline__ int row(int r) const { return Lanes::owned_row(r ^ lane ^ lane / Lanes::kLanes); }

  // The softmax has row l / 4 in lane l, and none in the lower half.
  __device__ __forceinline__ void multiply_rows(int half, float factor) {
    if (half != 0) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float of_row = ptx::shfl_from(4 * row(r), factor);
#pragma unroll
      for (float& of_dim : x[r]) of_dim *= of_row;
    }
  }

  // Once all keys are in it, to PartialRows of hopper/joined_row.cuh.
  template <class Part>
  __device__ __forceinline__ void write(const Part& part) const {
    FmaOutput of_all = *this;
    of_all.add_groups();
    of_all.store(part);
  }

 private:
  // By the keys of all groups, in every kGroups-th of x.
  __device__ __forceinline__ void add_groups() {
#pragma unroll
    for (int bit = 1; bit < Lanes::kGroups; bit *= 2)
#pragma unroll
      for (int r = 0; r < kRows; r += 2 * bit)
#pragma unroll
        for (int i = 0; i < kChunkElements; ++i) x[r][i] += ptx::shfl_xor(x[r + bit][i], bit * Lanes::kLanes);
  }

  template <class Part>
  __device__ __forceinline__ void store(const Part& part) const {
    // Eight lanes, which write together, have banks twice.
    const bool upper_first = lane / 4 % 2 != 0;
    const int chunk = lane % Lanes::kLanes;
    if (chunk >= Part::kColumns / kChunkElements) return;
#pragma unroll
    for (int r = 0; r < kRows; r += Lanes::kGroups) {
      const SmemAddress to = part.row(row(r)) + chunk * kChunkElements * sizeof(float);
      store_half(to, x[r], upper_first);
      store_half(to, x[r], !upper_first);
    }
  }
  __device__ __forceinline__ static void store_half(SmemAddress to, const float (&x)[kChunkElements], bool upper) {
    constexpr int kHalf = kChunkElements / 2;
    uint32 words[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) words[i] = __float_as_uint(upper ? x[i + kHalf] : x[i]);
    ptx::st_shared(to + (upper ? kHalf * sizeof(float) : 0), {words[0], words[1], words[2], words[3]});
  }
};

// As WarpAttention of mma/warp_attention.cuh. Scores come and go as accumulators of mma.sync, so that masks, scores and
// the softmax are the same. Of these 16 rows only the first ones are there; the others have numbers that no one reads.
template <class Config, class Shape, class Softmax_>
struct FmaAttention {
  using Element = typename Config::Element;
  using Softmax = Softmax_;
  using Shift = typename Softmax::Shift;
  static constexpr int kRows = Config::kBlockQ;
  using KeyLanes = FmaLanes<kRows, typename Shape::KTile>;
  using ValueLanes = FmaLanes<kRows, typename Shape::VTile>;
  static constexpr int kOwned = KeyLanes::kOwned;
  static_assert(Shape::kElementsOfWord == 1, "keys and values are of 16 bits");

  template <int kKeys>
  using Scores = Accumulator<1, kKeys / 8>;

  Softmax softmax;
  FmaOutput<ValueLanes> o;
  SmemAddress q_rows;
  int lane;
  uint32 key_offset, value_offset;
  float query[kRows][kChunkElements];  // in query[r] the row that lane r ^ lane owns

  __device__ __forceinline__ FmaAttention(float scale_log2, SmemAddress q_rows_, int lane_)
      : softmax(scale_log2),
        o(lane_),
        q_rows(q_rows_),
        lane(lane_),
        key_offset(KeyLanes::offset(lane_)),
        value_offset(ValueLanes::offset(lane_)) {}

  __device__ __forceinline__ void keep_query() {
    using QTile = typename Shape::QTile;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      KeyLanes::load(Element{}, query[r], q_rows + QTile::offset(KeyLanes::owned_row(r ^ lane), KeyLanes::chunk(lane)),
                     lane);
  }

  // S = Q K^T for kKeys keys that begin at a row which is a multiple of 8.
  template <int kKeys>
  __device__ __forceinline__ void compute_scores(Scores<kKeys>& s, SmemAddress keys) const {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float owned[kOwned];
#pragma unroll
      for (int parity = 0; parity < kOwned; ++parity) owned[parity] = owned_score(keys, n, parity);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int owner = lane % 4 * 8 + KeyLanes::owner_of(lane / 4 % kRows);
        s.x[0][n][e] = kOwned == 1 ? ptx::shfl_from(owner + 4 * e, owned[0]) : ptx::shfl_from(owner, owned[e % kOwned]);
        s.x[0][n][2 + e] = 0.0f;
      }
    }
  }

  // O += exp(S - max) V, with what raise_maximum() made of S. kept: as of WarpAttention. Scales of what is stored in 8
  // bits there are none.
  template <int kKeys, class Kept, class Scales>
  __device__ __forceinline__ void accumulate_output(const Scores<kKeys>& s, const Shift& shift, SmemAddress values,
                                                    Kept kept, uint32 flips, const Scales&) {
    KeptPairs kept_pairs;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float p[2];
      softmax.exponentials(s.x[0][n], shift, 0, 0, p[0], p[1]);
      if constexpr (Config::Dropouts::kAny) {
        if (n % 4 == 0) kept_pairs = kept(0, 0, 8 * n);
        drop(p, kept_pairs.x[n % 4] ^ flips);
      }
      const uint32 from = 4 * o.row(0) + lane / 8;
      const float first = ptx::shfl_from(from, p[0]), second = ptx::shfl_from(from, p[1]);
      if constexpr (kOwned == 1) {
        add_values(values, n, 0, lane / 4 % 2 == 0 ? first : second);
      } else {
        add_values(values, n, 0, first);
        add_values(values, n, 1, second);
      }
    }
  }

 private:
  __device__ __forceinline__ float owned_score(SmemAddress keys, int n, int parity) const {
    float of_step[KeyLanes::kSteps];
#pragma unroll
    for (int step = 0; step < KeyLanes::kSteps; ++step) {
      float k[kChunkElements];
      KeyLanes::load(Element{}, k, keys + KeyLanes::move(key_offset, n, step, parity), lane);
      float of_row[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        of_row[r] = query[r][0] * k[0];
#pragma unroll
        for (int i = 1; i < kChunkElements; ++i) of_row[r] = __fmaf_rn(query[r][i], k[i], of_row[r]);
      }
      of_step[step] = sum_of_lanes<1>(of_row);
    }
    return sum_of_lanes<kRows>(of_step);
  }

  // p: of what the lane owns.
  __device__ __forceinline__ void add_values(SmemAddress values, int n, int parity, float p) {
#pragma unroll
    for (int step = 0; step < ValueLanes::kSteps; ++step) {
      float v[kChunkElements];
      ValueLanes::load(Element{}, v, values + ValueLanes::move(value_offset, n, step, parity), lane);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int distance = step * kRows + r;
        const float of_row = distance == 0 ? p : ptx::shfl_xor(p, distance);
#pragma unroll
        for (int i = 0; i < kChunkElements; ++i) o.x[r][i] = __fmaf_rn(of_row, v[i], o.x[r][i]);
      }
    }
  }

  // kept: all bits of the one in the lower half, and of the other one in the upper half.
  __device__ __forceinline__ static void drop(float (&p)[2], uint32 kept) {
    p[0] = (kept & 0xffff) != 0 ? p[0] : 0.0f;
    p[1] = (kept >> 16) != 0 ? p[1] : 0.0f;
  }
};
