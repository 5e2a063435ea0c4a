// SPDX-License-Identifier: Apache-2.0
// Keys and values of 8 bits, which become elements in registers. An ldmatrix of bytes brings a lane other dims than one
// of elements: of keys four neighbouring ones, which the query's dims are permuted for, and of values pairs, so that
// the even and the odd dims of sixteen become a matrix of the output each.
#pragma once

#include "abi.cuh"
#include "attention/format.cuh"
#include "attention/softmax.cuh"
#include "attention/stored.cuh"
#include "mma/columns.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Of a word of four: pairs of neighbours.
template <class Format>
__device__ __forceinline__ void neighbours_of(Half, uint32 word, uint32& low, uint32& high) {
  Format::to_halves(word, low, high);
}
template <class Format>
__device__ __forceinline__ void neighbours_of(BFloat16, uint32 word, uint32& low, uint32& high) {
  uint32 halves[2];
  float x[4];
  Format::to_halves(word, halves[0], halves[1]);
  ptx::cvt_x2(Half{}, halves[0], x[0], x[1]);
  ptx::cvt_x2(Half{}, halves[1], x[2], x[3]);
  low = ptx::cvt_rn_x2(BFloat16{}, x[0], x[1]), high = ptx::cvt_rn_x2(BFloat16{}, x[2], x[3]);
}

template <class Config, class Shape>
struct E4m3Fragments {
  using QTile = typename Shape::QTile;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using Element = typename Config::Element;
  using Format = typename Config::Format;
  using Key = Element;
  // Probabilities fit f16 as they fit bf16, and 8 bits become it by one instruction.
  using Value = Half;
  using Columns = ColumnsByParity;
  static constexpr int kM = Shape::kM;

  // Dims 16k..16k+15 as A operands: the columns of a lane are four neighbouring dims.
  __device__ __forceinline__ static void load_query(uint32 (&q)[kM][4], const SmemAddress& rows, int lane, int k) {
    const uint32 at = QTile::offset(lane / 4, lane % 4 / 2) + lane % 2 * 8;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float low, high;
        ptx::ld_shared(rows + QTile::move(at, 16 * m + 8 * h, 2 * k), low, high);
        q[m][h] = __float_as_uint(low), q[m][2 + h] = __float_as_uint(high);
      }
  }

  // Keys 16n..16n+15, dims 16k..16k+15 as two B operands.
  __device__ __forceinline__ static void load_keys(uint32 (&b)[4], SmemAddress keys, int lane, int n, int k) {
    uint32 upper, lower;
    ptx::ldmatrix_x2(upper, lower, keys + KTile::move(KTile::offset(lane % 16, 0), 16 * n, k));
    neighbours_of<Format>(Element{}, upper, b[0], b[1]);
    neighbours_of<Format>(Element{}, lower, b[2], b[3]);
  }

  // Keys 16j..16j+15 as two B operands: the even dims among 16n..16n+15, and the odd ones.
  __device__ __forceinline__ static void load_values(uint32 (&b)[4], SmemAddress values, int lane, int j, int n) {
    load_values_from(b, values, place_of_values(lane, 0), j, n);
  }
  // As in ElementFragments.
  __device__ __forceinline__ static uint32 place_of_values(int lane, int first) {
    return VTile::offset(lane % 16, first);
  }
  __device__ __forceinline__ static void load_values_from(uint32 (&b)[4], SmemAddress values, uint32 at, int j, int n) {
    constexpr uint32 kEvenThenOdd = 0x3120;
    uint32 upper, lower;
    ptx::ldmatrix_x2_trans(upper, lower, values + VTile::move(at, 16 * j, n));
    Format::to_halves(ptx::prmt(upper, kEvenThenOdd), b[0], b[2]);
    Format::to_halves(ptx::prmt(lower, kEvenThenOdd), b[1], b[3]);
  }
};

struct E4m3 {
  static constexpr int kElementsOfWord = 2;

  template <class Config, class Shape>
  using Fragments = E4m3Fragments<Config, Shape>;

  // One for all keys of a head.
  template <class Config>
  struct Scales : StoredAs<>::Scales<Config> {
    float of_keys, of_values;

    template <class Tiles, class Tile>
    __device__ __forceinline__ Scales(const Tiles& tiles, const Tile& tile, int)
        : of_keys(of_head(tiles.args.e4m3.keys, tile.kv_head)),
          of_values(of_head(tiles.args.e4m3.values, tile.kv_head)) {}

    template <int kNs>
    __device__ __forceinline__ void apply_to_scores(Accumulator<1, kNs>& s) const {
      s.multiply(of_keys);
    }
    template <int kNo>
    __device__ __forceinline__ void apply_to_output(Accumulator<1, kNo>& o) const {
      o.multiply(of_values);
    }

   private:
    __device__ __forceinline__ static float of_head(const ScaleTensor& scales, int head) {
      return scales.first == nullptr ? 1.0f : ptx::ld_global_float(scales.first + head * scales.strides.head);
    }
  };
};
