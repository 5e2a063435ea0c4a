// SPDX-License-Identifier: Apache-2.0
// Turns at the sums of dQ, for bits that are the same in every run: to a tile of queries the tiles of keys add from the
// last that it sees to the first. That is the order in which thread blocks have taken them, so nobody waits for who has
// not begun. Below a diagonal each tile of keys begins where it is the first to add, and meets queries a step behind
// the one before it: those that begin together do not wait for each other.
#pragma once

#include "abi.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// Of one adder of a block, which has its own part of a tile or all of it: a counter for each tile of queries of all
// heads and each adder.
template <class Config>
class QueryTurns {
  uint32* const turns;
  const int adder, adders, seqlen_q;

 public:
  // Of so many adders of a block; queries: of the tile's sequence.
  __device__ __forceinline__ QueryTurns(uint32* turns_, int queries, int adder_, int adders_)
      : turns(turns_), adder(adder_), adders(adders_), seqlen_q(queries) {}

  // index: of the tile among those of all heads; tile: in its own.
  __device__ __forceinline__ bool has_come(const KeyTile& keys, int index, int tile, const Mask<Config>& mask) const {
    return ptx::ld_acquire(counter(index)) == last_beside(tile, mask) - keys.index;
  }
  __device__ __forceinline__ void await(const KeyTile& keys, int index, int tile, const Mask<Config>& mask) const {
    while (!has_come(keys, index, tile, mask)) {
    }
  }
  // By who has seen what the adder added: all of it, in memory.
  __device__ __forceinline__ void pass(int index) const { ptx::red_increment_release(counter(index)); }

 private:
  // The last tile of keys that adds to it: QueryTiles, the other way round.
  __device__ __forceinline__ int last_beside(int tile, const Mask<Config>& mask) const {
    return mask.last_key(min((tile + 1) * Config::kBlockQ, seqlen_q) - 1) / Config::kBlockKv;
  }
  __device__ __forceinline__ uint32* counter(int index) const {
    return turns + static_cast<int64>(index) * adders + adder;
  }
};
