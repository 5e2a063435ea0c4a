// SPDX-License-Identifier: Apache-2.0
// Where a row of scores stands in a call, and what the call has for its head.
#pragma once

#include "abi.cuh"
#include "attention/sequence.cuh"
#include "types.cuh"

constexpr float kLog2E = 1.44269504088896f;

// The query head it is of, the key that stands beside it when the last query is aligned with the last key, and the
// lengths of its sequence.
struct RowPlace {
  int batch, head, position;
  Sequence sequence;
  SmemAddress fetched = 0;  // what the lane's columns have of what parts fetched, where they fetch
};

__device__ __forceinline__ float value_of_head(const HeadArguments& values, const RowPlace& place) {
  const char* const at = values.first + place.batch * values.batch_stride + place.head * sizeof(float);
  return *reinterpret_cast<const float*>(at);
}
