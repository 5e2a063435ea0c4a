// SPDX-License-Identifier: Apache-2.0
// An output of e4m3, for what multiplies it in 8 bits next. It is divided by a scale, which is in what divides it by
// its sums, so that partial results of split keys have it, too; what is above 448 then becomes that.
#pragma once

#include "abi.cuh"
#include "attention/neighbours.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

struct E4m3Output {
  static constexpr int kElementsOfWord = 2;

  template <class Arguments>
  __device__ __forceinline__ static float factor(const Arguments& args) {
    return args.out_e4m3.scale == nullptr ? 1.0f : __frcp_rn(ptx::ld_global_float(args.out_e4m3.scale));
  }

  // Of sixteen columns two words, of a lane's two rows.
  template <int kWords>
  __device__ __forceinline__ static void arrange(uint32 (&words)[kWords]) {
    const Neighbours neighbours(ptx::tid_x());
#pragma unroll
    for (int i = 0; i < kWords; i += 2) neighbours.exchange(words[i], words[i + 1]);
  }
};
