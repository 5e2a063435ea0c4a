// SPDX-License-Identifier: Apache-2.0
// Which key/value blocks a tile of rows visits, and which of them need a mask. Masks that are spans say so by
// arithmetic. Of what they leave, a part in the slot of blocks may leave out more. Its contract:
//   explicit Part(const Arguments&)  the launch's arguments, of which a part reads the member of its own
//   SeenGranules granules<kKeys>(int batch, int head, int first_query, int last_query, int first_key)
//                                    what predicates show these queries of kKeys keys
//   SeenGranules granules<kKeys>(int batch, int head, int query, int first_key)
//                                    the same for the queries of one granule
#pragma once

#include "attention/mask.cuh"
#include "types.cuh"

// What queries see of a block, by the predicates alone.
struct SeenBlock {
  bool some;   // some of them sees some key
  bool whole;  // all of them see all keys that there are
};
// The same of each kGranuleKeys keys from the first one on: a bit for each.
struct SeenGranules {
  uint32 some = ~0u, whole = 0;  // nothing is known
};

// At most one part.
template <class... Parts>
struct BlocksBy;

template <>
struct BlocksBy<> {
  static constexpr bool kListed = false;

  template <class Arguments>
  __device__ __forceinline__ explicit BlocksBy(const Arguments&) {}
};

template <class Part>
struct BlocksBy<Part> : Part {
  static constexpr bool kListed = true;

  using Part::Part;
  template <int kKeys>
  __device__ __forceinline__ SeenBlock seen(int batch, int head, int first_query, int last_query, int first_key) const {
    const SeenGranules seen = this->template granules<kKeys>(batch, head, first_query, last_query, first_key);
    return {seen.some != 0, seen.whole == (1u << kKeys / kGranuleKeys) - 1};
  }
};

// Blocks by their number from the first key. A tile visits them from the last to the first. In those from clean_end on
// some row does not see the last keys, and in those below clean_first some row does not see the first ones; all others
// are seen whole. Where no mask begins behind the first key, first and clean_first are 0 at compile time.
struct BlockRuns {
  int first, clean_first, clean_end, end;

  __device__ __forceinline__ int count() const { return end - first; }
};

// Of rows from first_row to last_row; kLeast: blocks that are visited even if no row sees a key of theirs.
template <int kBlockKv, int kLeast, class Mask>
__device__ __forceinline__ BlockRuns block_runs(const Mask& mask, int first_row, int last_row) {
  const int reach = mask.last_key(last_row) + kBlockKv;
  BlockRuns runs{};
  runs.end = kLeast == 0 ? max(reach, 0) / kBlockKv : max(reach / kBlockKv, kLeast);
  runs.clean_end = max(mask.last_key(first_row) + 1, 0) / kBlockKv;
  if constexpr (Mask::kBegins) {
    runs.first = min(mask.first_key(first_row) / kBlockKv, runs.end - kLeast);
    runs.clean_first = ceil_div(mask.first_key(last_row), kBlockKv);
  }
  return runs;
}
