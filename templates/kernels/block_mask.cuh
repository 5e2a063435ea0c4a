// SPDX-License-Identifier: Apache-2.0
// Makes a block mask: what predicates leave of granules of queries and keys. A lane judges one granule of keys, a warp
// a word of them, for one granule of queries.
#pragma once

#include "abi.cuh"
#include "attention/predicate.cuh"
#include "attention/row_place.cuh"
#include "ptx/barrier.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

constexpr int kBlockMaskWarps = 4;  // of a thread block

template <class Config>
class BlockMaskGranules {
  using Predicates = typename Config::Predicates;

 public:
  __device__ __forceinline__ explicit BlockMaskGranules(const typename Config::Arguments& args_)
      : args(args_.core), predicates(args_) {
    int index = static_cast<int>(ptx::ctaid_x()) * kBlockMaskWarps + ptx::tid_x() / kWarpSize;
    word = index % args.words, index /= args.words;
    const int granules = ceil_div(args.seqlen_q, kGranuleQueries);
    granule = index % granules, index /= granules;
    head = index % args.heads, batch = index / args.heads;
  }

  __device__ __forceinline__ void run() const {
    if (batch >= args.batch) return;
    const int first_key = (word * kGranulesOfWord + ptx::tid_x() % kWarpSize) * kGranuleKeys;
    const Seen seen = judge(first_key);
    const int exist = min(max(args.seqlen_kv - first_key, 0), kGranuleKeys);
    const uint32 keys = (1u << exist) - 1;
    const uint32 some = ptx::vote_ballot((seen.by_some & keys) != 0);
    const uint32 every = ptx::vote_ballot((~seen.by_all & keys) == 0);
    if (ptx::tid_x() % kWarpSize != 0) return;
    unsigned* const row =
        args.bits + batch * args.batch_stride + head * args.head_stride + static_cast<int64>(granule) * 2 * args.words;
    row[word] = some;
    row[args.words + word] = every;
  }

 private:
  // A bit for each key of a lane.
  struct Seen {
    uint32 by_some, by_all;
  };

  __device__ __forceinline__ Seen judge(int first_key) const {
    const Sequence sequence{args.seqlen_kv, args.seqlen_q};
    const int diagonal = sequence.keys - sequence.queries;
    const int first = granule * kGranuleQueries, end = min(first + kGranuleQueries, sequence.queries);
    const auto of_head = predicates.row([&] { return RowPlace{batch, head, first + diagonal, sequence}; });
    Seen all{0, ~0u};
#pragma unroll 1
    for (int query = first; query < end; ++query) {
      const auto row = of_head.at(query + diagonal);
      uint32 seen = 0;
#pragma unroll
      for (int key = 0; key < kGranuleKeys; ++key) seen |= static_cast<uint32>(row.sees({first_key, key})) << key;
      all.by_some |= seen, all.by_all &= seen;
    }
    return all;
  }

  const BlockMaskMaker& args;
  const Predicates predicates;
  int word, granule, head, batch;
};
