// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/scores.h"

#include <cmath>
#include <numbers>

#include "runtime/support/reject.h"

namespace flashjit {
namespace runtime {
namespace {

// Far beyond any use; between them neither a cap nor its inverse leaves f32, in any unit that scores have on the way.
constexpr float kSmallestCap = 1e-6f, kLargestCap = 1e6f;
// With slopes: kernels divide them by the scale.
constexpr float kSmallestScale = 0x1p-64f;

void check_softcap(float softcap) {
  if (softcap == 0 || (softcap >= kSmallestCap && softcap <= kLargestCap)) return;
  reject("softcap: must be from {} to {}, or 0 for none, was {}", kSmallestCap, kLargestCap, softcap);
}

}  // namespace

float softmax_scale_of(const AttentionOptions& opts, std::int64_t head_dim) {
  check_softcap(opts.softcap);
  if (!opts.softmax_scale) return 1.0f / std::sqrt(static_cast<float>(head_dim));
  const float scale = *opts.softmax_scale;
  if (!std::isfinite(scale * std::numbers::log2e_v<float>))
    reject("softmax_scale: must be finite, and below 2.3e38 in magnitude, was {}", scale);
  if (opts.softcap != 0 && !std::isfinite(scale / opts.softcap))
    reject("softmax_scale: must be below 3.4e38 times softcap in magnitude, was {} with a cap of {}", scale,
           opts.softcap);
  if (opts.alibi_slopes && opts.softcap == 0 && std::fabs(scale) < kSmallestScale)
    reject("softmax_scale: must be at least 2^-64 in magnitude with alibi_slopes, was {}", scale);
  return scale;
}

Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts,
                   const Masks& masks) noexcept {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .causal = masks.causal,
          .window = masks.has_window(),
          .chunk = masks.chunk > 0,
          .softcap = opts.softcap != 0,
          .alibi = opts.alibi_slopes.has_value(),
          .sinks = opts.sinks.has_value()};
}

}  // namespace runtime

Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts) {
  const Problem problem = runtime::problem_of(dtype, head_dim, head_dim_v, opts, runtime::masks_of(opts));
  validate(problem);
  runtime::softmax_scale_of(opts, head_dim);
  return problem;
}

}  // namespace flashjit
