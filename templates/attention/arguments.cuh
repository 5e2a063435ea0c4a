// SPDX-License-Identifier: Apache-2.0
// The launch arguments, the device's twin of generator/arguments.h.
#pragma once

#include "types.cuh"

// Byte strides of a [batch, seqlen, heads, head_dim] tensor.
struct RowStrides {
  int64 batch, row, head;
};

struct ForwardArguments {
  const char* q;
  const char* k;
  const char* v;
  char* out;
  float* lse;  // null: not written
  RowStrides q_strides, k_strides, v_strides, out_strides;
  RowStrides lse_strides;
  float scale_log2;   // |softmax_scale| * log2(e)
  uint32 query_sign;  // XORed into pairs of q elements
  int batch;
  int seqlen_q, seqlen_kv;
  int num_heads_q;
  int heads_per_group;  // query heads that share one key/value head
  int num_q_tiles;
  int heads_per_section;
};
