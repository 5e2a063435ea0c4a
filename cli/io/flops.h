// SPDX-License-Identifier: Apache-2.0
// Rates, by the convention of the FlashAttention papers.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/tensor.h>

#include <algorithm>

namespace flashjit::cli {

// Floating-point operations of a forward pass: q is [batch, seqlen_q, heads, head_dim]. A causal mask counts as half.
inline double forward_flops(const Dims& q, std::int64_t seqlen_kv, std::int64_t head_dim_v, bool causal) {
  const double scores = static_cast<double>(q[0]) * static_cast<double>(q[1]) * static_cast<double>(q[2]) *
                        static_cast<double>(seqlen_kv);
  return 2.0 * scores * static_cast<double>(q[3] + head_dim_v) * (causal ? 0.5 : 1.0);
}

// The number of keys that a query at the position sees under a window and chunks.
inline std::int64_t seen_keys(const AttentionOptions& options, std::int64_t position, std::int64_t seqlen_kv) {
  const std::int64_t right = options.causal ? 0 : options.window.right;
  std::int64_t begin = 0, end = seqlen_kv;
  // No sum is larger than what it is compared with.
  if (options.window.left >= 0 && options.window.left < position) begin = position - options.window.left;
  if (right >= 0 && right < seqlen_kv - position) end = position + right + 1;
  if (options.chunk > 0) {
    if (position < 0) return 0;
    const std::int64_t first = position - position % options.chunk;
    begin = std::max(begin, first);
    if (options.chunk < seqlen_kv - first) end = std::min(end, first + options.chunk);
  }
  return std::max<std::int64_t>(0, end - begin);
}

// Beside chunks, and beside a window that is no causal mask: of the pairs of a query and a key that it sees.
inline double forward_flops(const Dims& q, std::int64_t seqlen_kv, std::int64_t head_dim_v,
                            const AttentionOptions& options) {
  const bool causal = options.causal || options.window.right == 0;
  if (options.window.left < 0 && (causal || options.window.right < 0) && options.chunk == 0)
    return forward_flops(q, seqlen_kv, head_dim_v, causal);
  double pairs = 0;
  for (std::int64_t row = 0; row < q[1]; ++row)
    pairs += static_cast<double>(seen_keys(options, row + seqlen_kv - q[1], seqlen_kv));
  return 2.0 * static_cast<double>(q[0]) * static_cast<double>(q[2]) * pairs * static_cast<double>(q[3] + head_dim_v);
}

inline double tflops(double operations, double microseconds) {
  constexpr double kOperationsPerMicrosecond = 1e6;  // of one TFLOPS
  return microseconds > 0 ? operations / microseconds / kOperationsPerMicrosecond : 0;
}

}  // namespace flashjit::cli
