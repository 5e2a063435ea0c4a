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
    Words words = words_of<kKeys>(batch, head, first_query, first_key);
    SeenGranules seen{0, ~0u};
#pragma unroll 1
    for (int query = first_query / kGranuleQueries; query <= last_query / kGranuleQueries; ++query) {
      seen.some |= at(words);
      words.first += mask.words;
      seen.whole &= at(words);
      words.first += mask.words;
    }
    return among<kKeys>(seen);
  }
  // The same of the queries of one granule.
  template <int kKeys>
  __device__ __forceinline__ SeenGranules granules(int batch, int head, int query, int first_key) const {
    Words words = words_of<kKeys>(batch, head, query, first_key);
    const uint32 some = at(words);
    words.first += mask.words;
    return among<kKeys>({some, at(words)});
  }

 private:
  // Two that follow one another hold the granules of a block, from a bit of the first one on.
  struct Words {
    uint32 first, next, shift;
  };

  template <int kKeys>
  __device__ __forceinline__ Words words_of(int batch, int head, int query, int first_key) const {
    static_assert(kKeys / kGranuleKeys < kGranulesOfWord, "two words hold the granules of a block");
    const uint32 word = first_key / (kGranuleKeys * kGranulesOfWord);
    // Behind the last word there are no keys: what stands in its place may be anything.
    const uint32 next = min(word + 1, mask.words - 1) - word;
    uint32 first = batch * mask.batch_stride + head * mask.head_stride + word;
    first += query / kGranuleQueries * 2 * mask.words;
    return {first, next, first_key / kGranuleKeys % static_cast<uint32>(kGranulesOfWord)};
  }
  __device__ __forceinline__ uint32 at(const Words& words) const {
    return __funnelshift_r(mask.bits[words.first], mask.bits[words.first + words.next], words.shift);
  }
  template <int kKeys>
  __device__ __forceinline__ static SeenGranules among(SeenGranules seen) {
    constexpr uint32 kGranules = (1u << kKeys / kGranuleKeys) - 1;
    return {seen.some & kGranules, seen.whole & kGranules};
  }
};
