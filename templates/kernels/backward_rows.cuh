// SPDX-License-Identifier: Apache-2.0
// What surrounds the backward kernel of the mma family, row by row of the queries: before it the row sums of dO O, less
// the gradient of the LSE, the LSE in binary logarithms and zeros for dQ; behind it dQ in its own dtype. Some lanes of
// a warp have a row. And zeros: for counters and sums, and for gradients of rows that belong to no sequence.
#pragma once

#include "abi.cuh"
#include "attention/gradient.cuh"
#include "attention/row_place.cuh"
#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "tile/octet.cuh"
#include "types.cuh"

// Rows follow one another by batch entry, head and query.
struct BackwardRow {
  int64 index;
  int batch, head, query, lane;

  __device__ __forceinline__ explicit BackwardRow(const BackwardRows& rows) {
    const int64 thread = static_cast<int64>(ptx::ctaid_x()) * kBackwardRowsThreads + ptx::tid_x();
    lane = static_cast<int>(thread) & ((1 << rows.lanes_log2) - 1);
    index = thread >> rows.lanes_log2;
    const int64 of_heads = index / rows.padded_seqlen;
    query = static_cast<int>(index % rows.padded_seqlen);
    head = static_cast<int>(of_heads % rows.num_heads), batch = static_cast<int>(of_heads / rows.num_heads);
  }
  __device__ __forceinline__ int64 in(const RowStrides& strides) const {
    return batch * strides.batch + query * strides.row + head * strides.head;
  }
};

template <class Element>
struct BackwardPrepare {
  const BackwardPrepareArguments& args;

  __device__ __forceinline__ void run() const {
    const BackwardRow row(args.rows);
    const bool is_row = row.index < args.rows.count, exists = is_row && row.query < args.rows.seqlen;
    float sum = 0.0f;
    if (exists) sum = sum_of(row);
    if (is_row) clear(row);
#pragma unroll 1
    for (int lanes = 1 << args.rows.lanes_log2; lanes > 1; lanes /= 2) sum += ptx::shfl_xor(sum, lanes / 2);
    if (!is_row || row.lane != 0) return;
    float lse = -infinity();
    if (exists) {
      if (args.dlse != nullptr) sum -= ptx::ld_global_float(args.dlse + row.in(args.dlse_strides));
      lse = ptx::ld_global_float(args.lse + row.in(args.lse_strides));
    }
    args.row_sums[row.index] = sum;
    args.lse_log2[row.index] = backward_lse(lse);
  }

 private:
  __device__ __forceinline__ float sum_of(const BackwardRow& row) const {
    float sum = 0.0f;
#pragma unroll 1
    for (int chunk = row.lane; chunk < args.chunks; chunk += 1 << args.rows.lanes_log2) {
      const Octet out = Octets<Element>::load(args.out + row.in(args.out_strides) + chunk * Octets<Element>::kBytes);
      const Octet dout = Octets<Element>::load(args.dout + row.in(args.dout_strides) + chunk * Octets<Element>::kBytes);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = __fmaf_rn(out.x[i], dout.x[i], sum);
    }
    return sum;
  }
  __device__ __forceinline__ void clear(const BackwardRow& row) const {
    if (args.dq == nullptr) return;
#pragma unroll 1
    for (int chunk = row.lane; chunk < args.dq_chunks; chunk += 1 << args.rows.lanes_log2)
      Octets<Single>::store(
          reinterpret_cast<char*>(args.dq) + (row.index * args.dq_chunks + chunk) * Octets<Single>::kBytes, Octet{});
  }
};

template <class Element>
struct BackwardFinish {
  const BackwardFinishArguments& args;

  __device__ __forceinline__ void run() const {
    const BackwardRow row(args.rows);
    if (row.index >= args.rows.count) return;
#pragma unroll 1
    for (int chunk = row.lane; chunk < args.chunks; chunk += 1 << args.rows.lanes_log2) {
      Octet sum = Octets<Single>::load(reinterpret_cast<const char*>(args.sums) +
                                       (row.index * args.chunks + chunk) * Octets<Single>::kBytes);
#pragma unroll
      for (float& x : sum.x) x *= args.scale;
      Octets<Element>::store(args.dq + row.in(args.dq_strides) + chunk * Octets<Element>::kBytes, sum);
    }
  }
};

template <class Stored>
struct BackwardClearRows {
  const BackwardClearRowsArguments& args;

  __device__ __forceinline__ void run() const {
    const BackwardRow row(args.rows);
    if (row.index >= args.rows.count) return;
#pragma unroll 1
    for (int chunk = row.lane; chunk < args.chunks; chunk += 1 << args.rows.lanes_log2)
      Octets<Stored>::store(args.to + row.in(args.strides) + chunk * Octets<Stored>::kBytes, Octet{});
  }
};

// A thread for each.
struct BackwardClear {
  const BackwardClearArguments& args;

  __device__ __forceinline__ void run() const {
    const int64 index = static_cast<int64>(ptx::ctaid_x()) * kBackwardRowsThreads + ptx::tid_x();
    if (index < args.count) args.counters[index] = 0;
  }
};
