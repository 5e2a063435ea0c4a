// SPDX-License-Identifier: Apache-2.0
// The launch arguments of the forward kernels: the host's twin of ForwardArguments in
// templates/attention/arguments.cuh. The rendered source asserts that both have the same size and offsets.
#pragma once

#include <cstdint>

namespace flashjit::generator {

// Byte strides of a [batch, seqlen, heads, head_dim] tensor; the last dimension is contiguous.
struct RowStrides {
  std::int64_t batch, row, head;
};

struct ForwardArguments {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* lse;  // null: not written
  RowStrides q_strides, k_strides, v_strides, out_strides;
  RowStrides lse_strides;    // of [batch, head, row] f32, in bytes
  float scale_log2;          // |softmax_scale| * log2(e), never 0: see make_forward_arguments
  std::uint32_t query_sign;  // XORed into pairs of q elements: flips their sign when the scale is negative
  std::int32_t batch;
  std::int32_t seqlen_q, seqlen_kv;
  std::int32_t num_heads_q;
  std::int32_t heads_per_group;    // query heads that share one key/value head
  std::int32_t num_q_tiles;        // ceil(seqlen_q / block_q)
  std::int32_t heads_per_section;  // longest_first: heads whose K and V fit L2 together
};

}  // namespace flashjit::generator
