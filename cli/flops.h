// SPDX-License-Identifier: Apache-2.0
// Rates, by the convention of the FlashAttention papers.
#pragma once

#include <flashjit/tensor.h>

namespace flashjit::cli {

// Floating-point operations of a forward pass: q is [batch, seqlen_q, heads, head_dim]. A causal mask counts as half.
inline double forward_flops(const Dims& q, std::int64_t seqlen_kv, std::int64_t head_dim_v, bool causal) {
  const double scores = static_cast<double>(q[0]) * static_cast<double>(q[1]) * static_cast<double>(q[2]) *
                        static_cast<double>(seqlen_kv);
  return 2.0 * scores * static_cast<double>(q[3] + head_dim_v) * (causal ? 0.5 : 1.0);
}

inline double tflops(double operations, double microseconds) {
  constexpr double kOperationsPerMicrosecond = 1e6;  // of one TFLOPS
  return microseconds > 0 ? operations / microseconds / kOperationsPerMicrosecond : 0;
}

}  // namespace flashjit::cli
