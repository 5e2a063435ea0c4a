// SPDX-License-Identifier: Apache-2.0
// Blocks by a block mask in memory, which kernels/block_mask.cuh makes of the same predicates.
#pragma once

#include "abi.cuh"
#include "attention/blocks.cuh"
#include "types.cuh"

struct BlockMask {
  const BlockMaskArguments& mask;

  template <class Arguments>
  __device__ __forceinline__ explicit BlockMask(const Arguments& args) : mask(args.blocks) {}

  // Of kKeys keys, a multiple of a granule, from first_key on. In few registers: a producer has no others.
  template <int kKeys>
  __device__ __forceinline__ SeenGranules granules(int batch, int head, int first_query, int last_query,
                                                   int first_key) const {
    constexpr uint32 kGranules = (1u << kKeys / kGranuleKeys) - 1;
    static_assert(kKeys / kGranuleKeys < kGranulesOfWord, "two words hold the granules of a block");
    const uint32 word = first_key / (kGranuleKeys * kGranulesOfWord),
                 shift = first_key / kGranuleKeys % kGranulesOfWord;
    // Behind the last word there are no keys: what stands in its place may be anything.
    const uint32 next = min(word + 1, mask.words - 1) - word;
    uint32 at = batch * mask.batch_stride + head * mask.head_stride + word;
    at += first_query / kGranuleQueries * 2 * mask.words;
    uint32 some = 0, every = ~0u;
#pragma unroll 1
    for (int query = first_query / kGranuleQueries; query <= last_query / kGranuleQueries; ++query) {
      some |= __funnelshift_r(mask.bits[at], mask.bits[at + next], shift);
      at += mask.words;
      every &= __funnelshift_r(mask.bits[at], mask.bits[at + next], shift);
      at += mask.words;
    }
    return {some & kGranules, every & kGranules};
  }
};
