// SPDX-License-Identifier: Apache-2.0
// Adds rows up, in f32 and in the order of the parts: gradients of what several calls depend on. Some lanes of a warp
// have a row, each a chunk of eight elements at a time; whoever writes a chunk has read it, so a part may lie where the
// sum goes.
#pragma once

#include "abi.cuh"
#include "ptx/special_registers.cuh"
#include "tile/octet.cuh"
#include "types.cuh"

template <class Part, class Whole>
class SumRows {
 public:
  __device__ __forceinline__ explicit SumRows(const SumArguments& args_) : args(args_) {}

  __device__ __forceinline__ void run() {
    const int lanes = 1 << args.row_lanes_log2;
    const int64 thread = static_cast<int64>(ptx::ctaid_x()) * kSumThreads + ptx::tid_x();
    const int64 row = thread >> args.row_lanes_log2;
    if (row >= args.rows) return;
    // Quotients of 64 bits take most of the instructions, and nearly all row numbers have 32.
    if (args.rows >> 32 == 0)
      find(static_cast<uint32>(row));
    else
      find(row);
#pragma unroll 1
    for (int chunk = static_cast<int>(thread) & (lanes - 1); chunk < args.chunks; chunk += lanes) add_up(chunk);
  }

 private:
  template <typename Row>
  __device__ __forceinline__ void find(Row row) {
    const Row heads = static_cast<Row>(args.num_heads), rows = static_cast<Row>(args.seqlen), query = row / heads;
    batch = static_cast<int>(query / rows);
    position = static_cast<int>(query % rows);
    head = static_cast<int>(row % heads);
  }
  __device__ __forceinline__ int64 offset(const RowStrides& strides) const {
    return batch * strides.batch + position * strides.row + head * strides.head;
  }
  __device__ __forceinline__ Octet load(const SumPart& part, int chunk) const {
    return Octets<Part>::load(part.rows + offset(part.strides) + chunk * Octets<Part>::kBytes);
  }
  __device__ __forceinline__ void add_up(int chunk) const {
    Octet sum = load(args.parts[0], chunk);  // and not 0, so that a single part is copied bit by bit
#pragma unroll 4
    for (int i = 1; i < args.count; ++i) sum.add(1.0f, load(args.parts[i], chunk));
    Octets<Whole>::store(args.out + offset(args.out_strides) + chunk * Octets<Whole>::kBytes, sum);
  }

  const SumArguments& args;
  int batch = 0, position = 0, head = 0;  // of the row
};
