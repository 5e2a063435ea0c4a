// SPDX-License-Identifier: Apache-2.0
// Behind the backward kernel: the gradient of a bias, which that summed in f32, in the dtype and the memory of the
// caller. A thread block for so many keys of a row.
#pragma once

#include "abi.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

__device__ __forceinline__ void store_element(Single, char* row, int at, float x) {
  ptx::st_global(row + at * sizeof(float), x);
}
template <class Element>
__device__ __forceinline__ void store_element(Element, char* row, int at, float x) {
  reinterpret_cast<unsigned short*>(row)[at] = static_cast<unsigned short>(ptx::cvt_rn_x2(Element{}, x, 0.0f));
}

template <class Element>
struct BiasGradientRows {
  const BiasGradientRowsArguments& args;

  __device__ __forceinline__ void run() const {
    const int64 row = ptx::ctaid_x() / args.blocks_of_row;
    const int first = static_cast<int>(ptx::ctaid_x() % args.blocks_of_row) * kBiasGradientKeys;
    const int query = static_cast<int>(row % args.queries);
    const int head = static_cast<int>(row / args.queries % args.heads);
    char* const to = args.gradients + row / args.queries / args.heads * args.strides.batch + head * args.strides.head +
                     query * args.strides.row;
#pragma unroll
    for (int i = 0; i < kBiasGradientKeys; i += kBackwardRowsThreads)
      if (const int key = first + i + static_cast<int>(ptx::tid_x()); key < args.keys)
        store_element(Element{}, to, key, ptx::ld_global_float(args.sums + row * args.keys + key));
  }
};
