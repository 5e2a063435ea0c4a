// SPDX-License-Identifier: Apache-2.0
// Products of 8 bits: queries, keys, values and probabilities. Tiles have scales of their own, which cost nothing:
// those of queries and keys go into the softmax's scale, those of values into the division by the sums.
#pragma once

#include "abi.cuh"
#include "attention/products.cuh"
#include "mma/fragments.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Rounding to the nearest of e4m3 takes 0.07 % away from a sum of many: the neighbours of a power of two are not
// equally far, and around what most of a row's sum comes from, where exp(s) times the density of scores s is largest,
// the density of probabilities falls with their square. So they are larger by as much before they are rounded, and the
// output is divided by it; powers of two stay what they are.
struct E4m3Centre {
  static constexpr float kFactor = 1.00070255f, kLog2 = 0.00101320504f;
};

// E4m3 has numbers from 2^-9 to 448. What a score at its row's maximum becomes is far enough above the least that small
// probabilities keep their digits, and far enough below the largest that a maximum may lag behind. Its logarithm is an
// integer: what a row with one key has is exact.
template <int kPeakLog2_>
struct E4m3Probabilities {
  static constexpr int kPeakLog2 = kPeakLog2_;
  static constexpr float kCentreLog2 = E4m3Centre::kLog2;
  static constexpr float kMostLog2 = 8.75f;
  // None of a lane's is above what all of them are together.
  static constexpr float kMostOfLane = 448.0f;
  // A probability becomes e4m3, its row's sum does not: what a reference was rounded by is an error then. Up to here it
  // is below 2^-9, less than half a step of bf16.
  static constexpr float kFar = 16384.0f;
};

// A lane whose columns all are at the maximum is within what a lazy one may sum to.
__device__ constexpr int e4m3_peak_log2(Rescale rescale, int columns) {
  int peak = 4;
  while (rescale == Rescale::lazy && (columns << peak) > 448) --peak;
  return peak;
}

// An ldmatrix of pairs of bytes brings queries and keys as it brings those of 16 bits. Of values, which it transposes,
// a lane has dims 2g and 2g + 1 of keys 2t and 2t + 1 of every eight; prmt makes four keys of one dim of two eights, in
// the order in which a lane has probabilities of these. docs/kernels/fp8.md draws it.
template <class Config, class Shape>
struct E4m3ProductFragments : ElementFragments<Config, Shape> {
  using VTile = typename Shape::VTile;
  using Key = typename Config::Format::Key;
  using Value = typename Config::Format::Value;
  using Columns = ColumnsByParity;

  // Keys 32j..32j+31 as two B operands: the even dims among 16n..16n+15, and the odd ones.
  __device__ __forceinline__ static void load_values(uint32 (&b)[4], SmemAddress values, int lane, int j, int n) {
    constexpr uint32 kEven = 0x6420, kOdd = 0x7531;
    uint32 pairs[4];
    ptx::ldmatrix_x4_trans(pairs, values + VTile::move(VTile::offset(lane, 0), 32 * j, n));
    b[0] = ptx::prmt(pairs[0], pairs[1], kEven), b[1] = ptx::prmt(pairs[2], pairs[3], kEven);
    b[2] = ptx::prmt(pairs[0], pairs[1], kOdd), b[3] = ptx::prmt(pairs[2], pairs[3], kOdd);
  }
};

// Values that come transposed are brought as keys are: a lane has four keys of a dim.
template <class Config, class Shape>
struct TransposedE4m3Fragments : ElementFragments<Config, Shape> {
  using VTile = typename Shape::VTile;
  using Key = typename Config::Format::Key;
  using Value = typename Config::Format::Value;

  // Keys 32j..32j+31 as two B operands: dims 16n..16n+7, and 16n+8..16n+15.
  __device__ __forceinline__ static void load_values(uint32 (&b)[4], SmemAddress values, int lane, int j, int n) {
    const uint32 at = VTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    ptx::ldmatrix_x4(b, values + VTile::move(at, 16 * n, 2 * j));
  }
};

struct E4m3Products {
  static constexpr int kElementsOfWord = 2;
  static constexpr bool kTransposesValues = true;

  template <Rescale kRescale, int kColumns>
  using Probabilities = E4m3Probabilities<e4m3_peak_log2(kRescale, kColumns)>;

  template <class Config, class Shape>
  using Fragments = typename Choose<Config::Values::kTransposed, TransposedE4m3Fragments<Config, Shape>,
                                    E4m3ProductFragments<Config, Shape>>::type;

  // Of a head of a batch entry, that of products times the launch's.
  template <class Config>
  struct Scales {
    static constexpr bool kAny = true;

    float of_products, of_values;

    template <class Heads, class Tile>
    __device__ __forceinline__ Scales(const typename Config::Arguments& args, const Heads& heads, const Tile& tile) {
      const int head = heads.first(tile.head), kv_head = tile.head / args.core.sizes.heads_per_group;
      of_products = args.core.sizes.scale_log2;
      // By the scale first, which may be what keeps the product in f32.
      if constexpr (!Config::Products::kScalesBlocks)
        of_products =
            of_products * at(args.e4m3_queries.queries, tile.batch, head) * at(args.e4m3.keys, tile.batch, kv_head);
      // Nothing may be 0, nor a slope over it infinite; no score, of products of 2^40 at most, changes by it. Products
      // that have their blocks' scales may be larger.
      of_products = fmaxf(of_products, Config::Products::kScalesBlocks ? kSmallestNormal : kSmallest);
      of_values = E4m3Centre::kFactor;
      if constexpr (!Config::Products::kScalesBlocks)
        of_values = at(args.e4m3.values, tile.batch, kv_head) * E4m3Centre::kFactor;
      if constexpr (Config::Written::kElementsOfWord == 2) of_values *= Config::Written::factor(args);
    }

    template <class Heads, class Tile>
    __device__ __forceinline__ static float of_query(const typename Config::Arguments& args, const Heads& heads,
                                                     const Tile& tile, int row) {
      return of_block(args.e4m3_queries.queries, tile.batch, heads.head(tile.head, row), heads.query(row));
    }
    template <class Tile>
    __device__ __forceinline__ static float of_key(const typename Config::Arguments& args, const Tile& tile, int key) {
      return of_block(args.e4m3.keys, tile.batch, tile.head / args.core.sizes.heads_per_group, key);
    }
    template <class Tile>
    __device__ __forceinline__ static float of_value(const typename Config::Arguments& args, const Tile& tile,
                                                     int key) {
      return of_block(args.e4m3.values, tile.batch, tile.head / args.core.sizes.heads_per_group, key);
    }

   private:
    static constexpr float kSmallest = 5.42101086e-20f;  // 2^-64
    static constexpr float kSmallestNormal = 1.17549435e-38f;

    __device__ __forceinline__ static float at(const ScaleTensor& scales, int batch, int head) {
      if (scales.first == nullptr) return 1.0f;
      return ptx::ld_global_float(scales.first + batch * scales.strides.batch + head * scales.strides.head);
    }
    __device__ __forceinline__ static float of_block(const ScaleTensor& scales, int batch, int head, int row) {
      if (scales.first == nullptr) return 1.0f;
      return ptx::ld_global_float(scales.first + batch * scales.strides.batch + head * scales.strides.head +
                                  row / kRowsOfScale * scales.strides.row);
    }
  };
};
