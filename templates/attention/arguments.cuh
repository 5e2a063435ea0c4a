// SPDX-License-Identifier: Apache-2.0
// The launch arguments, the device's twins of generator/arguments.h.
#pragma once

#include "types.cuh"

// Byte strides of a [batch, seqlen, heads, head_dim] tensor.
struct RowStrides {
  int64 batch, row, head;
};

struct ForwardSizes {
  float scale_log2;   // |softmax_scale| * log2(e)
  uint32 query_sign;  // XORed into pairs of q elements
  int batch;
  int seqlen_q, seqlen_kv;
  int num_heads_q;
  int heads_per_group;  // query heads that share one key/value head
  int num_q_tiles;
  int heads_per_section;
};

// The mma.sync family.
struct ForwardArguments {
  const char* q;
  const char* k;
  const char* v;
  char* out;
  float* lse;  // null: not written
  RowStrides q_strides, k_strides, v_strides, out_strides;
  RowStrides lse_strides;
  ForwardSizes sizes;
};

// What the copy engine is told of a tensor; opaque.
struct alignas(64) TensorMap {
  uint64 opaque[16];
};

// The Hopper family. Heads are counted in packs of 1 << packed_heads_log2 query heads, and so are all of sizes.
struct HopperArguments {
  TensorMap q, k, v, out;
  float* lse;  // null: not written
  RowStrides lse_strides;
  uint32* tile_counter;  // 0 before and after every launch; null unless the scheduler is dynamic
  ForwardSizes sizes;
  int packed_heads_log2;
};
