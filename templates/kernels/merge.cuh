// SPDX-License-Identifier: Apache-2.0
// Joins partial results of attention, over parts of the keys, to what attention over all of these keys gives (Dao et
// al. 2023, "Flash-Decoding"): each output weighed by its share of the sum of exponentials. Some lanes of a warp have
// a row, each a chunk of eight elements at a time; so whoever writes a row has read it, and a part may lie where the
// result goes.
#pragma once

#include "abi.cuh"
#include "attention/row_place.cuh"
#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "tile/octet.cuh"
#include "types.cuh"

// Of a row of the result.
struct MergePlace {
  int batch, position, head;

  __device__ __forceinline__ int64 in(const RowStrides& strides) const {
    return batch * strides.batch + position * strides.row + head * strides.head;
  }
};

template <class Part, class Whole>
class MergeRows {
 public:
  __device__ __forceinline__ explicit MergeRows(const MergeArguments& args_) : args(args_) {}

  __device__ __forceinline__ void run() const {
    const int lanes = 1 << args.row_lanes_log2;
    const int64 thread = static_cast<int64>(ptx::ctaid_x()) * kMergeThreads + ptx::tid_x();
    const int lane = static_cast<int>(thread) & (lanes - 1);
    const int64 row = thread >> args.row_lanes_log2, query = row / args.num_heads;
    const MergePlace place{static_cast<int>(query / args.seqlen), static_cast<int>(query % args.seqlen),
                           static_cast<int>(row % args.num_heads)};
    Sum sum{};
    if (row < args.rows) {
      sum = sum_of(place);
#pragma unroll 1
      for (int chunk = lane; chunk < args.chunks; chunk += lanes) join_chunk(place, chunk, sum);
    }
    ptx::bar_warp_sync();  // all lanes have read what may lie where the LSE goes
    if (row < args.rows && lane == 0 && args.lse != nullptr)
      ptx::st_global(args.lse + place.in(args.lse_strides), sum.log());
  }

 private:
  // Of exponentials, relative to the largest part's.
  struct Sum {
    float shift, total;

    __device__ __forceinline__ float log() const {
      return total == 0.0f ? -infinity() : __fmaf_rn(ptx::lg2(total), kLn2, shift);
    }
  };

  __device__ __forceinline__ static float lse_of(const MergePart& part, const MergePlace& place) {
    return ptx::ld_global_float(part.lse + place.in(part.lse_strides));
  }
  __device__ __forceinline__ static float share_of(const MergePart& part, const MergePlace& place, float shift) {
    return ptx::ex2((lse_of(part, place) - shift) * kLog2E);
  }

  __device__ __forceinline__ Sum sum_of(const MergePlace& place) const {
    float largest = -infinity();
#pragma unroll 1
    for (int i = 0; i < args.count; ++i) largest = fmaxf(largest, lse_of(args.parts[i], place));
    // Where no part saw a key, all shares are 0 for any shift but an infinite one.
    Sum sum{largest == -infinity() ? 0.0f : largest, 0.0f};
#pragma unroll 1
    for (int i = 0; i < args.count; ++i) sum.total += share_of(args.parts[i], place, sum.shift);
    return sum;
  }

  __device__ __forceinline__ void join_chunk(const MergePlace& place, int chunk, const Sum& sum) const {
    Octet joined{};
#pragma unroll 4
    for (int i = 0; i < args.count; ++i) {
      const MergePart& part = args.parts[i];
      const float share = share_of(part, place, sum.shift);
      // What a part that saw no key has in its output is not looked at.
      if (share != 0.0f)
        joined.add(share, Octets<Part>::load(part.out + place.in(part.out_strides) + chunk * Octets<Part>::kBytes));
    }
    const float factor = sum.total == 0.0f ? 0.0f : __frcp_rn(sum.total);
#pragma unroll
    for (float& x : joined.x) x *= factor;
    Octets<Whole>::store(args.out + place.in(args.out_strides) + chunk * Octets<Whole>::kBytes, joined);
  }

  const MergeArguments& args;
};
