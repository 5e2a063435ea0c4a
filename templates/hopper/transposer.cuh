// SPDX-License-Identifier: Apache-2.0
// Values of 8 bits come with dims along their rows, and wgmma takes them with keys there: it transposes 16-bit elements
// only (PTX ISA, "wgmma.mma_async"). Warps of the producer that have nothing else to do transpose what is loaded.
//
// ldmatrix.trans moves pairs of bytes, so that a lane has dims 2g and 2g + 1 of keys 2t and 2t + 1, and of those 8
// further on; prmt makes four keys of one dim of it, and stmatrix a row of the transposed tile. Of each 16 keys a row
// has key 8c + 2t + e at place 4t + 2c + e then: the order in which a lane's probabilities of these keys, of which it
// has 2t and 2t + 1 of each eight, are four neighbours of wgmma's A. docs/kernels/fp8.md draws it.
#pragma once

#include "hopper/shape.cuh"
#include "hopper/tiles.cuh"
#include "pipeline/ring.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"

template <class Config>
class HopperTransposer {
  using Shape = HopperShape<Config>;
  using Tile = HopperTile<Config>;
  using From = typename Shape::VTile;
  using To = typename Shape::ValueTile;
  static constexpr int kUnitKeys = 32, kUnitDims = 16;  // of one ldmatrix
  static constexpr int kUnitsOfKeys = Config::kBlockKv / kUnitKeys;
  static constexpr int kUnitsOfDims = Config::kHeadDimV / kUnitDims;
  static constexpr int kUnitsOfWarp = ceil_div(kUnitsOfDims, Shape::kTransposers);  // of dims
  static constexpr int kTogether = kUnitsOfWarp < 2 ? kUnitsOfWarp : 2;             // in flight

 public:
  __device__ __forceinline__ HopperTransposer(const Shape& shape, int warp_)
      : warp(warp_),
        announced(shape.tiles()),
        loaded(shape.loaded_values()),
        transposed(shape.values()),
        from(From::offset(lane(), warp)),
        to(To::offset(kUnitDims * warp + lane() % 8 * 2 + lane() / 8 % 2, lane() / 16)) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      const int stage = announced.take();
      const Tile tile = Tile::read(announced.place.slot(stage));
      int blocks = tile.end_block == 0 ? 0 : tile.end_block - tile.first_block;
      if constexpr (Config::Blocks::kListed) blocks = tile.end_block == 0 ? 0 : max(tile.listed, 1);
      ptx::bar_warp_sync();  // all lanes have read it
      announced.give_back(stage, ptx::elect());
      if (blocks == 0) return;
#pragma unroll 1
      for (; blocks > 0; --blocks) transpose_block();
    }
  }

 private:
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }

  __device__ __forceinline__ void transpose_block() {
    loaded.wait_full();
    transposed.wait_empty();
#pragma unroll 1
    for (int keys = 0; keys < kUnitsOfKeys; ++keys)
#pragma unroll
      for (int i = 0; i < kUnitsOfWarp; i += kTogether) transpose_units(keys, i);
    // What was written is for the copy engine's side of memory, and what was read may be written again.
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();
    const bool signs = ptx::elect();
    loaded.release(signs);
    if (signs) ptx::mbarrier_arrive(transposed.full());
    transposed.advance();
  }

  // The warp's units of dims from the i-th on, of the unit of keys.
  __device__ __forceinline__ void transpose_units(int keys, int first) const {
    const SmemAddress source = loaded.slot() + from + keys * kUnitKeys * From::kRowBytes;
    const SmemAddress target = transposed.slot() + To::move(to, 0, kUnitKeys / kChunkBytes * keys);
    uint32 pairs[kTogether][4];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (is_there(first + i))
        ptx::ldmatrix_x4_trans(pairs[i], From::move(source, 0, Shape::kTransposers * (first + i)));
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (!is_there(first + i)) continue;
      constexpr uint32 kEven = 0x6420, kOdd = 0x7531;
      const uint32(&of)[4] = pairs[i];
      ptx::stmatrix_x4(To::move(target, kUnitDims * Shape::kTransposers * (first + i), 0),
                       ptx::prmt(of[0], of[1], kEven), ptx::prmt(of[0], of[1], kOdd), ptx::prmt(of[2], of[3], kEven),
                       ptx::prmt(of[2], of[3], kOdd));
    }
  }
  __device__ __forceinline__ bool is_there(int i) const {
    return i < kUnitsOfWarp &&
           (kUnitsOfDims % Shape::kTransposers == 0 || Shape::kTransposers * i + warp < kUnitsOfDims);
  }

  const int warp;  // of the transposers
  RingReader<typename Shape::TileRing, 1> announced;
  RingReader<typename Shape::VRing, 1> loaded;
  RingWriter<typename Shape::ValueRing> transposed;
  const uint32 from, to;  // of the lane's rows of the first unit, in a slot
};
