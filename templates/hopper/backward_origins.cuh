// SPDX-License-Identifier: Apache-2.0
// Where the Hopper backward kernels find the rows of a sequence.
#pragma once

#include "attention/key_tile.cuh"
#include "ptx/tma.cuh"
#include "types.cuh"

// Where boxes of a sequence's rows begin in its tensors, of which nothing behind its end is brought.
template <class Config>
__device__ __forceinline__ auto query_origin(const typename Config::Arguments& launch,
                                             const PlacedKeyTile<Config>& tile, int head, int row) {
  if constexpr (Config::Sequences::kRagged) {
    const int queries = tile.sequence.queries;
    return ptx::EndedBoxOrigin{0, head, launch.ragged.query_rows - queries + row, tile.first_query + queries,
                               tile.query_batch};
  } else {
    return ptx::BoxOrigin{0, head, row, tile.batch};
  }
}
template <class Config>
__device__ __forceinline__ auto key_origin(const typename Config::Arguments& launch, const PlacedKeyTile<Config>& tile,
                                           int row) {
  if constexpr (Config::Sequences::kRagged) {
    const int keys = tile.sequence.keys;
    return ptx::EndedBoxOrigin{0, tile.head, launch.ragged.key_rows - keys + row, tile.first_key + keys,
                               tile.key_batch};
  } else {
    return ptx::BoxOrigin{0, tile.head, row, tile.batch};
  }
}
