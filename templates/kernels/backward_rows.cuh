// SPDX-License-Identifier: Apache-2.0
// What surrounds a backward kernel, row by row of the queries: before it the row sums of dO O, less the gradient of the
// LSE, the LSE in binary logarithms and zeros for dQ; behind it dQ in its own dtype. Some lanes of a warp have a row.
#pragma once

#include "abi.cuh"
#include "attention/row_place.cuh"
#include "attention/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/grid_dependency.cuh"
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
    if (ptx::ctaid_x() == 0 && ptx::tid_x() == 0 && args.tile_counter != nullptr) *args.tile_counter = 0;
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
    // All probabilities of a row that sees nothing are 0, and of one that pads.
    args.lse_log2[row.index] = lse == -infinity() ? infinity() : lse * kLog2E;
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

// The same where a tile's parts lie as the registers of a warpgroup: [chunk][thread][4]. Four neighbouring threads have
// the eight dims of a chunk, of two rows.
template <class Element>
struct BackwardFinishTiles {
  const BackwardTilesArguments& args;

  __device__ __forceinline__ void run() const {
    ptx::wait_for_grids();
    constexpr int kParts = kBackwardParts, kRows = 64, kRowsOfWarp = 16, kPairs = kRows / 2;
    constexpr int kBytesOfChunk = kWarpgroupSize * kChunkBytes;
    const uint32 block = ptx::ctaid_x(), part = block % kParts, tile = block / kParts % args.tiles,
                 of_heads = block / kParts / args.tiles;
    const int batch = static_cast<int>(of_heads / args.num_heads), head = static_cast<int>(of_heads % args.num_heads);
    const char* const sums =
        reinterpret_cast<const char*>(args.sums) + static_cast<int64>(block) * args.part_chunks * kBytesOfChunk;
    char* const to = args.dq + batch * args.dq_strides.batch + head * args.dq_strides.head;
    const bool are_rows = args.parts_are_rows != 0;
    const int first_row = are_rows ? (tile * kParts + part) * kRows : tile * kRows;
    const int first_chunk = are_rows ? 0 : part * args.part_chunks;
#pragma unroll 1
    for (int i = ptx::tid_x(); i < kPairs * args.part_chunks; i += kBackwardRowsThreads) {
      const int chunk = i % args.part_chunks, pair = i / args.part_chunks;
      const int row = first_row + pair / 8 * kRowsOfWarp + pair % 8;
      if ((first_chunk + chunk) * kChunkElements >= args.head_dim) continue;
      const char* const from = sums + chunk * kBytesOfChunk + pair * 4 * kChunkBytes;
      const Octet first = Octets<Single>::load(from), second = Octets<Single>::load(from + 2 * kChunkBytes);
      char* const chunk_to = to + (first_chunk + chunk) * Octets<Element>::kBytes;
      store(chunk_to, row,
            {first.x[0], first.x[1], first.x[4], first.x[5], second.x[0], second.x[1], second.x[4], second.x[5]});
      store(chunk_to, row + 8,
            {first.x[2], first.x[3], first.x[6], first.x[7], second.x[2], second.x[3], second.x[6], second.x[7]});
    }
  }

 private:
  __device__ __forceinline__ void store(char* to, int row, Octet sum) const {
    if (row >= args.seqlen) return;
#pragma unroll
    for (float& x : sum.x) x *= args.scale;
    Octets<Element>::store(to + row * args.dq_strides.row, sum);
  }
};
