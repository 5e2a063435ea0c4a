// SPDX-License-Identifier: Apache-2.0
// A scale for each key of each head, and one for its value: products are multiplied by the key's, and probabilities by
// the value's. Those of the block below are loaded as soon as these have been used.
#pragma once

#include "abi.cuh"
#include "attention/keys.cuh"
#include "attention/scale_reference.cuh"
#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Of the kernel of few rows, hopper/tiles.cuh. That of large heads has the scales otherwise:
// mma/shared_rows_scales.cuh.
template <class Config>
struct HopperTile;
template <class Config>
struct HopperTiles;

struct TokenScales {
  template <class Config>
  class Scales {
   public:
    template <class Tiles, class Tile>
    __device__ __forceinline__ Scales(const Tiles& tiles_, const Tile& tile_, int lane)
        : tiles(tiles_), tile(tile_), keys(tiles.sequence_of(tile).keys), own(lane), column(lane % 4 * 2) {}

    __device__ __forceinline__ void find(int first_key) {
      if (first_key != found) {
        load(of_keys, scales().keys, first_key);
        load(of_values, scales().values, first_key);
      }
      found = first_key - Config::kBlockKv;
    }
    template <int kNs>
    __device__ __forceinline__ void apply_to_scores(Accumulator<1, kNs>& s) {
      static_assert(kNs == kTiles);
#pragma unroll
      for (int n = 0; n < kNs; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s.x[0][n][e] *= of_keys[n][e % 2];
      load(of_keys, scales().keys, found);
    }
    template <int kNo>
    __device__ __forceinline__ void raise(Accumulator<1, kNo>& o) {
      float largest = 0.0f;
#pragma unroll
      for (const auto& pair : of_values) largest = fmaxf(largest, fmaxf(fabsf(pair[0]), fabsf(pair[1])));
      if (ptx::vote_any(reference.is_exceeded_by(largest))) {
        largest = fmaxf(largest, ptx::shfl_xor(largest, 1));
        o.multiply(reference.raise(fmaxf(largest, ptx::shfl_xor(largest, 2))));
      }
#pragma unroll
      for (auto& pair : of_values) pair[0] *= reference.inverse(), pair[1] *= reference.inverse();
    }
    __device__ __forceinline__ void apply_to_values(float& p0, float& p1, int n) const {
      p0 *= of_values[n][0], p1 *= of_values[n][1];
    }
    __device__ __forceinline__ void look_ahead() {
      load(of_values, scales().values, found);
      ask_for(found - kBlocksAhead * Config::kBlockKv + own);
    }
    template <int kNo>
    __device__ __forceinline__ void apply_to_output(Accumulator<1, kNo>& o) const {
      o.multiply(reference.value());
    }

   private:
    static constexpr int kKeys = Config::kBlockKv / 4;  // of a block, a warp's
    static constexpr int kTiles = kKeys / 8;            // of eight keys
    static constexpr int kBlocksAhead = 2;              // of what is loaded
    using Pairs = float[kTiles][2];

    // Loads take longer than a block where memory is busy, unless L2 has what they read. A lane asks for a key's.
    __device__ __forceinline__ void ask_for(int key) const {
      if (own >= kKeys || key < 0 || key >= keys) return;
      const KeyPlace place = tiles.place_of_key(tile, key);
      ptx::prefetch_global_l2(at(scales().keys, place));
      ptx::prefetch_global_l2(at(scales().values, place));
    }
    __device__ __forceinline__ const char* at(const ScaleTensor& of, const KeyPlace& place) const {
      return of.first + place.batch * of.strides.batch + place.row * of.strides.row + tile.kv_head * of.strides.head;
    }
    // 0 for keys that there are not.
    __device__ __forceinline__ void load(Pairs& pairs, const ScaleTensor& from, int first_key) const {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int key = first_key + 8 * n + column;
        pairs[n][0] = pairs[n][1] = 0.0f;
        // Two neighbours of eight keys are in one page.
        if (key < 0 || key >= keys) continue;
        const KeyPlace place = tiles.place_of_key(tile, key);
        const char* const first = at(from, place);
        pairs[n][0] = ptx::ld_global_float(first);
        if (key + 1 < keys) pairs[n][1] = ptx::ld_global_float(first + from.strides.row);
      }
    }

    __device__ __forceinline__ const E4m3Arguments& scales() const { return tiles.args.e4m3; }

    const HopperTiles<Config>& tiles;
    const HopperTile<Config>& tile;
    const int keys, own, column;
    int found = -Config::kBlockKv;  // what was asked for is of the keys from here on
    Pairs of_keys, of_values;
    ScaleReference reference;
  };
};
