// SPDX-License-Identifier: Apache-2.0
// Gradients of what options have one number of for each query head, behind the backward kernel of either family. A
// thread block for each number goes through what belongs to the head, always in the same order.
#pragma once

#include "abi.cuh"
#include "attention/row_place.cuh"
#include "attention/sequence_rows.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

constexpr int kHeadGradientWarps = kHeadGradientThreads / kWarpSize;

struct HeadGradientShared {
  float sums[kHeadGradientWarps];
};

// What a head of a sequence has: so many terms, from this place in memory on.
struct TermsOfHead {
  int64 first;
  int count;
};

// A sink is a score of each row whose key has no value: of its gradient P (dP - D) dP is 0.
struct SinkTerms {
  const SinkGradientArguments& args;

  // entry: of q.
  __device__ __forceinline__ TermsOfHead of(const RowsOfSequence& queries, int entry, int, int head) const {
    return {(static_cast<int64>(entry) * args.sum.heads + head) * args.padded_queries + queries.first, queries.count};
  }
  __device__ __forceinline__ float term(int batch, int head, int64 at) const {
    const float sink_log2 = value_of_head(args.sinks, {batch, head, 0, {}}) * kLog2E;
    const float p = ptx::ex2(sink_log2 - ptx::ld_global_float(args.lse_log2 + at));
    return p == 0.0f ? 0.0f : -p * ptx::ld_global_float(args.row_sums + at);
  }
};

// As parts/score_gradient/slopes.cuh leaves them, of each warp that had a tile of keys. Places as PlacedKeyTile has
// them.
struct SlopeTerms {
  const SlopeGradientSumsArguments& args;

  // entry: of k.
  __device__ __forceinline__ TermsOfHead of(const RowsOfSequence& keys, int entry, int batch, int head) const {
    const int64 place = (static_cast<int64>(entry) * args.sum.heads + head) * args.key_tiles +
                        keys.first / args.block_kv + (batch - entry);
    return {place * args.warps, ceil_div(keys.count, args.block_kv) * args.warps};
  }
  __device__ __forceinline__ float term(int, int, int64 at) const { return ptx::ld_global_float(args.sums + at); }
};

template <class Terms>
struct HeadGradient {
  const HeadGradientArguments& args;
  const Terms terms;
  HeadGradientShared& shared;

  __device__ __forceinline__ void run() const {
    const int head = static_cast<int>(ptx::ctaid_x()) % args.heads,
              place = static_cast<int>(ptx::ctaid_x()) / args.heads;
    const float sum = sum_of_block(sum_of_thread(place, head));
    if (ptx::tid_x() == 0) ptx::st_global(args.gradients + place * args.batch_stride + head, sum);
  }

 private:
  __device__ __forceinline__ float sum_of_thread(int first, int head) const {
    float sum = 0.0f;
#pragma unroll 1
    for (int batch = first; batch < first + args.batch; ++batch) {
      const int entry = args.rows.offsets != nullptr ? 0 : batch;
      const TermsOfHead all = terms.of(rows_of_sequence(args.rows, batch), entry, batch, head);
#pragma unroll 1
      for (int i = ptx::tid_x(); i < all.count; i += kHeadGradientThreads)
        sum += terms.term(batch, head, all.first + i);
    }
    return sum;
  }
  // Of thread 0.
  __device__ __forceinline__ float sum_of_block(float sum) const {
    const int warp = ptx::tid_x() / kWarpSize;
#pragma unroll
    for (int lanes = kWarpSize; lanes > 1; lanes /= 2) sum += ptx::shfl_xor(sum, lanes / 2);
    if (ptx::tid_x() % kWarpSize == 0) shared.sums[warp] = sum;
    ptx::bar_sync();
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeadGradientWarps; ++i) all += shared.sums[i];
    return all;
  }
};
