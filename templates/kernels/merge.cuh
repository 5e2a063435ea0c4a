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
    const int64 row = thread >> args.row_lanes_log2;
    MergePlace place{};
    Sum sum{};
    if (row < args.rows) {
      // Quotients of 64 bits take most of the instructions, and nearly all row numbers have 32.
      place = args.rows >> 32 == 0 ? place_of(static_cast<uint32>(row)) : place_of(row);
      const auto lse = [&](int part) { return lse_of(part, place); };
      if (args.count > kFewParts) sum = sum_of(args.count, lse);
#pragma unroll 1
      for (int chunk = lane; chunk < args.chunks; chunk += lanes) {
        if (args.count <= kFewParts)
          sum = join_few(place, chunk);
        else
          join(place, chunk, sum, args.count, lse, [&](int part) { return load(part, place, chunk); });
      }
    }
    ptx::bar_warp_sync();  // all lanes have read what may lie where the LSE goes
    if (row < args.rows && lane == 0 && args.lse != nullptr)
      ptx::st_global(args.lse + place.in(args.lse_strides), sum.log());
  }

 private:
  static constexpr int kFewParts = 4;

  // Of exponentials, relative to the largest part's.
  struct Sum {
    float shift, total;

    __device__ __forceinline__ float share_of(float lse) const { return ptx::ex2((lse - shift) * kLog2E); }
    __device__ __forceinline__ float log() const {
      return total == 0.0f ? -infinity() : __fmaf_rn(ptx::lg2(total), kLn2, shift);
    }
  };

  template <typename Row>
  __device__ __forceinline__ MergePlace place_of(Row row) const {
    const Row heads = static_cast<Row>(args.num_heads), rows = static_cast<Row>(args.seqlen), query = row / heads;
    return {static_cast<int>(query / rows), static_cast<int>(query % rows), static_cast<int>(row % heads)};
  }
  __device__ __forceinline__ float lse_of(int part, const MergePlace& place) const {
    return ptx::ld_global_float(args.parts[part].lse + place.in(args.parts[part].lse_strides));
  }
  __device__ __forceinline__ Octet load(int part, const MergePlace& place, int chunk) const {
    const MergePart& of = args.parts[part];
    return Octets<Part>::load(of.out + place.in(of.out_strides) + chunk * Octets<Part>::kBytes);
  }

  // lse: of a part.
  template <class Lse>
  __device__ __forceinline__ static Sum sum_of(int count, const Lse& lse) {
    float largest = -infinity();
#pragma unroll 4
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, lse(i));
    // Where no part saw a key, all shares are 0 for any shift but an infinite one.
    Sum sum{largest == -infinity() ? 0.0f : largest, 0.0f};
#pragma unroll 4
    for (int i = 0; i < count; ++i) sum.total += sum.share_of(lse(i));
    return sum;
  }
  template <class Lse, class Load>
  __device__ __forceinline__ void join(const MergePlace& place, int chunk, const Sum& sum, int count, const Lse& lse,
                                       const Load& octet) const {
    Octet joined{};
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float share = sum.share_of(lse(i));
      // What a part that saw no key has in its output is not looked at.
      if (share != 0.0f) joined.add(share, octet(i));
    }
    const float factor = sum.total == 0.0f ? 0.0f : __frcp_rn(sum.total);
#pragma unroll
    for (float& x : joined.x) x *= factor;
    Octets<Whole>::store(args.out + place.in(args.out_strides) + chunk * Octets<Whole>::kBytes, joined);
  }

  // All that a chunk is made of is asked for at once.
  __device__ __forceinline__ Sum join_few(const MergePlace& place, int chunk) const {
    float lses[kFewParts];
    Octet octets[kFewParts];
#pragma unroll
    for (int i = 0; i < kFewParts; ++i) {
      lses[i] = i < args.count ? lse_of(i, place) : -infinity();
      if (i < args.count) octets[i] = load(i, place, chunk);
    }
    const auto lse = [&](int part) { return lses[part]; };
    const Sum sum = sum_of(kFewParts, lse);
    join(place, chunk, sum, kFewParts, lse, [&](int part) -> const Octet& { return octets[part]; });
    return sum;
  }

  const MergeArguments& args;
};
