// SPDX-License-Identifier: Apache-2.0
// What a thread block of a backward kernel of large heads has: a block of keys, and the blocks of queries that see any
// of them, of all heads of the group one after the other; or a block of queries of a head, and the blocks of keys that
// they see.
#pragma once

#include "abi.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "ptx/barrier.cuh"
#include "types.cuh"

// What a kernel makes: dV or dK of a block of keys, or dQ of one of queries.
enum class LargePass { values, keys, queries };

template <class Config>
struct LargeBackwardWork {
  using Sequences = typename Config::Sequences;
  using Tile = typename Sequences::Tile;
  static constexpr bool kOfQueries = Config::kPass == LargePass::queries;
  static constexpr int kRows = kOfQueries ? Config::kBlockQ : Config::kBlockKv;

  const typename Config::Arguments& launch;
  const PlacedKeyTile<Config> tile;  // of rows of queries: its index is theirs
  const int head;                    // of queries, the first one
  const Mask<Config> mask;
  const QueryTiles blocks;  // of queries or of keys, of one head
  const int steps;

  // By a whole warp.
  __device__ __forceinline__ LargeBackwardWork(const typename Config::Arguments& arguments, uint32 index)
      : LargeBackwardWork(arguments, find(arguments, index)) {}

  // Of a ragged batch there are more thread blocks than tiles.
  __device__ __forceinline__ static bool exists(const typename Config::Arguments& arguments, uint32 index) {
    if constexpr (kOfQueries)
      return !Sequences::kRagged || index < Sequences(arguments).count(arguments.core.sizes);
    else
      return PlacedKeyTile<Config>::exists(arguments, index);
  }

  // Through heads and blocks, one after the other.
  struct Step {
    int head, block;
  };
  __device__ __forceinline__ Step step(int i) const {
    if constexpr (kOfQueries) return {head, blocks.first + i};
    return {head + i / blocks.count(), blocks.first + i % blocks.count()};
  }
  __device__ __forceinline__ int first_row() const { return tile.index * kRows; }
  __device__ __forceinline__ int first_query(const Step& step) const {
    return kOfQueries ? first_row() : step.block * Config::kBlockQ;
  }
  __device__ __forceinline__ int first_key(const Step& step) const {
    return kOfQueries ? step.block * Config::kBlockKv : first_row();
  }

 private:
  struct Found {
    Tile tile;  // of exchanged keys and queries
    int head;
  };
  __device__ __forceinline__ LargeBackwardWork(const typename Config::Arguments& arguments, const Found& found)
      : launch(arguments),
        tile(arguments.core.sizes, found.tile),
        head(found.head),
        mask(arguments, tile.sequence, [this] { return tile.batch; }, {}),
        blocks(beside()),
        steps(max(blocks.count(), 0) * (kOfQueries ? 1 : arguments.core.sizes.heads_per_group)) {}

  // Of queries the last ones see the most keys.
  __device__ __forceinline__ static Found find(const typename Config::Arguments& arguments, uint32 index) {
    const ForwardSizes& sizes = arguments.core.sizes;
    if constexpr (kOfQueries) {
      const Tile rows = Sequences(arguments).template tile<true, Config::kLongestFirst, false>(sizes, index);
      const QueryTile of_group{rows.index, rows.head / sizes.heads_per_group, rows.batch};
      if constexpr (Sequences::kRagged)
        return by_warp({{rows.exchanged(), of_group}, rows.head});
      else
        return {{{}, of_group}, rows.head};
    } else {
      const Tile keys = PlacedKeyTile<Config>::find(arguments, index);
      return by_warp({keys, keys.head * sizes.heads_per_group});
    }
  }
  // To which what memory says is then known to be the same in all lanes, so that it is in uniform registers.
  __device__ __forceinline__ static Found by_warp(const Found& found) {
    if constexpr (Sequences::kRagged) {
      const QueryTile tile{ptx::shfl_first(found.tile.index), ptx::shfl_first(found.tile.head),
                           ptx::shfl_first(found.tile.batch)};
      return {{found.tile.of_first_lane(), tile}, ptx::shfl_first(found.head)};
    }
    return found;
  }
  __device__ __forceinline__ QueryTiles beside() const {
    if constexpr (!kOfQueries) {
      return QueryTiles::beside<Config>(first_row(), tile.sequence.queries, mask);
    } else {
      const int last = min(first_row() + kRows, tile.sequence.queries) - 1;
      QueryTiles seen{0, (mask.last_key(last) + Config::kBlockKv) / Config::kBlockKv};
      if constexpr (Mask<Config>::kBegins) seen.first = max(mask.first_key(first_row()), 0) / Config::kBlockKv;
      return seen;
    }
  }
};
