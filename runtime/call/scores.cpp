// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/scores.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "generator/arguments.h"
#include "generator/dtype.h"
#include "generator/functions.h"
#include "runtime/call/dropout.h"
#include "runtime/call/ragged.h"
#include "runtime/call/scales.h"
#include "runtime/support/ceil_quotient.h"
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

// Of a feature that is a function of a tensor; null: none.
const generator::FunctionText* function_of(generator::FunctionKind kind, const std::optional<Tensor>& tensor) {
  if (!tensor) return nullptr;
  const auto dtypes = generator::library_dtypes(kind);
  if (std::find(dtypes.begin(), dtypes.end(), tensor->dtype) == dtypes.end()) {
    std::string known;
    for (const DType dtype : dtypes)
      known += (known.empty() ? "" : dtype == dtypes.back() ? " or " : ", ") + std::string(to_string(dtype));
    reject("{}: dtype must be {}, was {}", generator::word_of(kind), known, to_string(tensor->dtype));
  }
  return &generator::library_function(kind, tensor->dtype);
}

}  // namespace

void require_e4m3_options(const AttentionOptions& opts, DType q_dtype) {
  if (opts.accumulate != Accumulate::exact && opts.accumulate != Accumulate::fast)
    reject("accumulate: must be exact or fast, was {}", static_cast<int>(opts.accumulate));
  if (generator::is_of_8_bits(q_dtype)) {
    if (opts.out_dtype && *opts.out_dtype != DType::e4m3 && !generator::has_kernels(*opts.out_dtype))
      reject("out_dtype: must be f16, bf16 or e4m3, was {}", to_string(*opts.out_dtype));
    if (opts.out_scale && opts.out_dtype != DType::e4m3)
      reject("out_scale: must not be given unless out_dtype is e4m3, which was {}",
             to_string(opts.out_dtype.value_or(DType::bf16)));
    return;
  }
  const char* const given = opts.q_scale                           ? "q_scale"
                            : opts.accumulate != Accumulate::exact ? "accumulate"
                            : opts.out_dtype                       ? "out_dtype"
                            : opts.out_scale                       ? "out_scale"
                                                                   : nullptr;
  if (given) reject("{}: must not be given unless q is of e4m3 or e5m2, which was of {}", given, to_string(q_dtype));
}

float softmax_scale_of(const AttentionOptions& opts, std::int64_t head_dim) {
  check_softcap(opts.softcap);
  check(opts.dropout);
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

Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts, const Masks& masks,
                   std::optional<DType> kv_dtype) {
  const DType of_keys = kv_dtype.value_or(dtype);
  const bool has_e4m3_queries = generator::is_of_8_bits(dtype);
  const bool is_e4m3 = generator::is_of_8_bits(of_keys);
  const bool is_written_in_e4m3 = has_e4m3_queries && opts.out_dtype == DType::e4m3;
  const bool has_block_scales =
      has_e4m3_queries && (is_of_blocks(opts.q_scale) || is_of_blocks(opts.k_scale) || is_of_blocks(opts.v_scale));
  using generator::FunctionKind;
  return {.dtype = is_written_in_e4m3 ? DType::bf16
                   : has_e4m3_queries ? opts.out_dtype.value_or(DType::bf16)
                                      : dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .causal = masks.causal,
          .window = masks.has_window(),
          .chunk = masks.chunk > 0,
          .softcap = opts.softcap != 0,
          .alibi = opts.alibi_slopes.has_value(),
          .sinks = opts.sinks.has_value(),
          .prefix = masks.prefix,
          .block_mask = opts.block_mask.has_value(),
          .dropout = opts.dropout.probability > 0,
          .ragged = is_ragged(opts),
          .paged = opts.page_table.has_value(),
          .e4m3 = is_e4m3,
          .token_scales = is_e4m3 && !has_e4m3_queries && GivenScales{opts.k_scale, opts.v_scale}.of_tokens(),
          .e4m3_queries = has_e4m3_queries,
          .fast_sums = has_e4m3_queries && opts.accumulate == Accumulate::fast && !has_block_scales,
          .block_scales = has_block_scales,
          .k_rotary = opts.k_rotary.has_value(),
          .out_e4m3 = is_written_in_e4m3,
          .e5m2 = of_keys == DType::e5m2,
          .bias = function_of(FunctionKind::bias, opts.bias),
          .boolean_mask = function_of(FunctionKind::boolean_mask, opts.boolean_mask),
          .documents = function_of(FunctionKind::documents, opts.documents),
          .tree = function_of(FunctionKind::tree, opts.tree),
          .score = opts.score ? opts.score->source() : nullptr,
          .mask = opts.mask ? opts.mask->source() : nullptr,
          .dropout_mask = function_of(FunctionKind::dropout_mask, opts.dropout_mask)};
}

}  // namespace runtime

Dims block_mask_dims(const CallShape& shape) {
  constexpr std::int64_t kKeysOfWord = generator::kGranuleKeys * generator::kGranulesOfWord;
  return {shape.batch, shape.num_heads_q, runtime::ceil_quotient(shape.seqlen_q, generator::kGranuleQueries), 2,
          runtime::ceil_quotient(shape.seqlen_kv, kKeysOfWord)};
}

Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts,
                   std::optional<DType> kv_dtype) {
  runtime::require_e4m3_options(opts, dtype);
  const bool is_of_8_bits = generator::is_of_8_bits(dtype);
  if (kv_dtype && *kv_dtype != dtype && (is_of_8_bits || !generator::is_of_8_bits(*kv_dtype)))
    runtime::reject("kv_dtype: must be {} like dtype{}, was {}", to_string(dtype), is_of_8_bits ? "" : ", e4m3 or e5m2",
                    to_string(*kv_dtype));
  const Problem problem = runtime::problem_of(dtype, head_dim, head_dim_v, opts, runtime::masks_of(opts), kv_dtype);
  validate(problem);
  runtime::softmax_scale_of(opts, head_dim);
  return problem;
}

}  // namespace flashjit
