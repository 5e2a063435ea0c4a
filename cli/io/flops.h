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

// Beside a window that is no causal mask, of the pairs of a query and a key that it sees.
inline double forward_flops(const Dims& q, std::int64_t seqlen_kv, std::int64_t head_dim_v,
                            const AttentionOptions& options) {
  const bool causal = options.causal || options.window.right == 0;
  if (options.window.left < 0 && (causal || options.window.right < 0))
    return forward_flops(q, seqlen_kv, head_dim_v, causal);
  const auto side = [seqlen_kv](std::int64_t keys) { return keys < 0 ? seqlen_kv : std::min(keys, seqlen_kv); };
  const std::int64_t left = side(options.window.left), right = causal ? 0 : side(options.window.right);
  double pairs = 0;
  for (std::int64_t row = 0; row < q[1]; ++row) {
    const std::int64_t position = row + seqlen_kv - q[1];
    const std::int64_t begin = std::max<std::int64_t>(0, position - left);
    pairs += static_cast<double>(std::max<std::int64_t>(0, std::min(seqlen_kv, position + right + 1) - begin));
  }
  return 2.0 * static_cast<double>(q[0]) * static_cast<double>(q[2]) * pairs * static_cast<double>(q[3] + head_dim_v);
}

inline double tflops(double operations, double microseconds) {
  constexpr double kOperationsPerMicrosecond = 1e6;  // of one TFLOPS
  return microseconds > 0 ? operations / microseconds / kOperationsPerMicrosecond : 0;
}

}  // namespace flashjit::cli
