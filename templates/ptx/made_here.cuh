// SPDX-License-Identifier: Apache-2.0
// No instruction. The compiler does not know what x is behind it, so that what follows from it is made where it is used
// and not kept in registers through a loop.
#pragma once

#include "types.cuh"

namespace ptx {

__device__ __forceinline__ uint64 made_here(uint64 x) {
  asm volatile("" : "+l"(x));
  return x;
}
__device__ __forceinline__ int made_here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace ptx
