// SPDX-License-Identifier: Apache-2.0
// Attention over keys that come in parts: what a query's results over each part are joined to is its result over all.
// Shared prefixes, prompts in chunks and sequences on several GPUs are computed so.
#pragma once

#include <optional>
#include <vector>

#include "flashjit/tensor.h"

namespace flashjit {

// What attention over some of the keys gave: its output and its AttentionOptions::lse.
struct Partial {
  Tensor out;  // [batch, seqlen_q, num_heads_q, head_dim_v], f16, bf16 or f32
  Tensor lse;  // f32 [batch, num_heads_q, seqlen_q]; -infinity where a row saw no key: then its out is not looked at
};

struct MergeOptions {
  // Where to write the log-sum-exp over all parts: f32 [batch, num_heads_q, seqlen_q], last dimension contiguous.
  // Needed with more than 16 parts. Default: not written.
  std::optional<Tensor> lse;
  // The call is asynchronous on this stream.
  Stream stream = nullptr;
};

// out = sum of exp(lse_i - lse) out_i, lse = log(sum of exp(lse_i)), in f32, on the GPU that holds the parts (Dao et
// al. 2023, "Flash-Decoding"). At least one part; all have the shape of out and one dtype, out has that or another of
// f16, bf16 and f32. head_dim_v is any multiple of 8. Views are as of attention: the last dimension contiguous,
// pointers 16-byte aligned, other strides multiples of 8 elements, 0 in a part for what several rows share. A part may
// be out itself, and its lse opts.lse: then it is joined in place; other overlaps are refused. The order of the parts
// changes nothing but rounding, and parts may be merges themselves: give these f32. More than 16 parts take a launch
// for each 15 further ones, between which a 16-bit out is rounded; out then has the dtype of the parts, and what is
// joined in place is among the first 16. A row that saw no key in any part gives 0 and
// -infinity; NaN in an lse reaches its row. Compiles a kernel for each pair of dtypes once, whatever the shapes. Sinks
// belong to one part alone. Thread-safe. Throws Error; then nothing was launched or written.
void merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts = {});
// The same into a new tensor of the dtype of the parts, packed, on opts.stream.
DeviceTensor merge(const std::vector<Partial>& parts, const MergeOptions& opts = {});

}  // namespace flashjit
