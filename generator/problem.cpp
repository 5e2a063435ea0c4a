// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "flashjit/error.h"
#include "flashjit/problem.h"
#include "generator/bucket_words.h"
#include "generator/dtype.h"
#include "generator/features.h"
#include "generator/functions.h"
#include "generator/plan.h"
#include "generator/stand_ins.h"

namespace flashjit {
namespace {

using generator::kKeyWords;
using generator::kQueryWords;
using generator::kWorkWords;

template <std::size_t kCount, typename Range>
std::string_view word_of(const std::string_view (&words)[kCount], Range range) noexcept {
  const auto index = static_cast<std::size_t>(range);
  return index < kCount ? words[index] : "?";
}

// Heads of a group that may share a tile: templates divide rows by powers of two.
std::int64_t most_packed_heads(const CallShape& shape) noexcept {
  const std::int64_t heads_per_group = shape.num_heads_q / shape.num_heads_kv;
  std::int64_t packed = 1;
  while (packed < generator::kMaxPackedHeads && heads_per_group % (2 * packed) == 0) packed *= 2;
  return packed;
}

QueryRange query_range(const CallShape& shape) noexcept {
  constexpr std::int64_t kFewRows = 16;
  const std::int64_t seqlen_q = shape.seqlen_q;
  if (seqlen_q <= kFewRows && seqlen_q * most_packed_heads(shape) <= kFewRows) return QueryRange::up_to_16;
  if (seqlen_q <= 64) return QueryRange::up_to_64;
  return seqlen_q <= 128 ? QueryRange::up_to_128 : QueryRange::more;
}

KeyRange key_range(std::int64_t seqlen_kv) noexcept {
  if (seqlen_kv < 1024) return KeyRange::below_1k;
  if (seqlen_kv < 2048) return KeyRange::below_2k;
  return seqlen_kv < 8192 ? KeyRange::below_8k : KeyRange::more;
}

// As few as sharing gives. A double has room for any product, and is exact up to far beyond the last boundary.
double count_tiles(const CallShape& shape) noexcept {
  constexpr std::int64_t kTile = 128;
  double fewest = 0;
  for (std::int64_t packed = 1; packed <= most_packed_heads(shape); packed *= 2) {
    if (packed > 1 && shape.seqlen_q > kTile) break;  // then it saves next to nothing
    const std::int64_t rows = shape.seqlen_q * packed;
    const auto tiles_of_pack = static_cast<double>(rows / kTile + (rows % kTile != 0));
    const double tiles = tiles_of_pack * static_cast<double>(shape.num_heads_q / packed);
    if (packed == 1 || tiles < fewest) fewest = tiles;
  }
  return static_cast<double>(shape.batch) * fewest;
}

WorkRange work_range(double tiles, int sm_count) noexcept {
  const double sms = sm_count;
  if (tiles <= 0.5 * sms) return WorkRange::up_to_half;
  if (tiles <= sms) return WorkRange::up_to_1;
  if (tiles <= 2 * sms) return WorkRange::up_to_2;
  return tiles <= 4 * sms ? WorkRange::up_to_4 : WorkRange::more;
}

// Those that a spelling tells apart: the library's by the dtype of their tensor, and the stand-ins of users'.
std::vector<const generator::FunctionText*> spelled_functions(generator::FunctionKind kind) {
  std::vector<const generator::FunctionText*> functions;
  for (const DType dtype : generator::library_dtypes(kind))
    functions.push_back(&generator::library_function(kind, dtype));
  for (const generator::StandIn& stand_in : generator::stand_ins())
    if (stand_in.kind == kind) functions.push_back(&generator::function_of(stand_in));
  return functions;
}

template <class Take>
void take_feature(const generator::FeatureRow& row, Problem& problem, Take take) {
  if (row.asked.flag) {
    problem.*row.asked.flag = take("-" + std::string(row.word));
    return;
  }
  for (const generator::FunctionText* function : spelled_functions(row.asked.kind)) {
    Problem with = problem;
    with.*row.asked.function = function;
    if (take("-" + generator::spell(row, with))) problem = with;
  }
}

void validate_e4m3(const Problem& problem) {
  if (problem.k_rotary) return;
  for (const auto& [name, dim] : {std::pair{"head_dim", problem.head_dim}, {"head_dim_v", problem.head_dim_v}})
    if (dim > generator::kMostUsualHeadDim)
      throw Error(ErrorCode::unsupported, fmt::format("{}: must be at most {} for keys and values of {}, was {}", name,
                                                      generator::kMostUsualHeadDim, to_string(kv_dtype(problem)), dim));
}

void validate_e4m3_queries(const Problem& problem) {
  for (const auto& [name, dim] : {std::pair{"head_dim", problem.head_dim}, {"head_dim_v", problem.head_dim_v}})
    if (dim % generator::kHeadDimStepOfE4m3 != 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must be a multiple of {} for queries of {}, was {}", name,
                              generator::kHeadDimStepOfE4m3, to_string(q_dtype(problem)), dim));
  if (!problem.e4m3)
    throw Error(ErrorCode::invalid_argument, "e4m3_queries: must not be true without e4m3, which keys must be of, too");
  for (const auto& [name, asked] : {std::pair{"token_scales", problem.token_scales},
                                    {"dropout", problem.dropout || problem.dropout_mask != nullptr}})
    if (asked)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must not be true beside queries of {}", name, to_string(q_dtype(problem))));
}

// Such sums of values would have no place for their scales.
void validate_block_scales(const Problem& problem) {
  if (!problem.e4m3_queries)
    throw Error(ErrorCode::invalid_argument,
                "block_scales: must not be true without e4m3_queries, whose scales they are");
  for (const auto& [name, asked] : {std::pair{"ragged", problem.ragged}, {"fast_sums", problem.fast_sums}})
    if (asked) throw Error(ErrorCode::invalid_argument, fmt::format("{}: must not be true beside block_scales", name));
}

// What keys have in a tensor of their own begins where whole products of the rest end.
void validate_k_rotary(const Problem& problem) {
  const auto refuse = [&](const char* name, std::string_view required, int was) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be {} beside k_rotary, was {}", name, required, was));
  };
  if (problem.head_dim_v % generator::kHeadDimStepOfE4m3 != 0)
    refuse("head_dim_v", fmt::format("a multiple of {}", generator::kHeadDimStepOfE4m3), problem.head_dim_v);
  if (problem.head_dim <= std::max(problem.head_dim_v, generator::kMostUsualHeadDim))
    refuse("head_dim",
           fmt::format("more than the {} of v, and than {}", problem.head_dim_v, generator::kMostUsualHeadDim),
           problem.head_dim);
  if (problem.e4m3_queries)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("k_rotary: must not be true beside queries of {}", to_string(q_dtype(problem))));
}

void validate_latent(const Problem& problem) {
  if (generator::may_be_latent(problem)) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("latent: must not be true but with head_dim above {}, head_dim_v a multiple of {} and no "
                  "larger, without e4m3 and k_rotary, was so for {} and {}",
                  generator::kMostUsualHeadDim, generator::kColumnsOfLatent, problem.head_dim, problem.head_dim_v));
}

// Where sequences begin anywhere their keys do not begin where copies may.
void validate_values_transposed(const Problem& problem) {
  if (!problem.e4m3_queries)
    throw Error(ErrorCode::invalid_argument,
                "values_transposed: must not be true without e4m3_queries, whose products take such values");
  if (problem.ragged) throw Error(ErrorCode::invalid_argument, "ragged: must not be true beside values_transposed");
}

// That of the output says nothing then.
void validate_out_e4m3(const Problem& problem) {
  if (!problem.e4m3_queries)
    throw Error(ErrorCode::invalid_argument,
                "out_e4m3: must not be true without e4m3_queries, beside which out may be so");
  if (problem.dtype != DType::bf16)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dtype: must be bf16 beside out_e4m3, was {}", to_string(problem.dtype)));
}

const generator::FunctionText* class_of(const generator::FunctionText* function) {
  return function ? &generator::function_of(generator::stand_in_of(*function)) : nullptr;
}

}  // namespace

DType q_dtype(const Problem& problem) noexcept { return problem.e4m3_queries ? kv_dtype(problem) : problem.dtype; }
DType kv_dtype(const Problem& problem) noexcept {
  return !problem.e4m3 ? problem.dtype : problem.e5m2 ? DType::e5m2 : DType::e4m3;
}

std::string to_string(const Problem& problem) {
  std::string text = fmt::format("fwd-{}-d{}", to_string(problem.dtype), problem.head_dim);
  if (problem.head_dim_v != problem.head_dim) text += fmt::format("-v{}", problem.head_dim_v);
  for (const generator::FeatureRow& row : generator::features())
    if (row.is_in(problem)) text += "-" + generator::spell(row, problem);
  return text;
}

Problem parse_problem(std::string_view text) {
  Problem problem;
  std::string_view rest = text;
  const auto take = [&rest](std::string_view prefix) {
    const bool taken = rest.starts_with(prefix);
    if (taken) rest.remove_prefix(prefix.size());
    return taken;
  };
  const auto take_number = [&rest](int& number) {
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), number).ptr;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  };
  for (const generator::DTypeRow& row : generator::dtypes())
    if (row.element && take(std::string("fwd-") + row.name)) problem.dtype = row.dtype;
  if (take("-d")) take_number(problem.head_dim);
  problem.head_dim_v = problem.head_dim;
  if (take("-v")) take_number(problem.head_dim_v);
  for (const generator::FeatureRow& row : generator::features()) take_feature(row, problem, take);
  // Whatever was skipped, missing or left over shows here.
  if (to_string(problem) != text) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("problem: must be like fwd-bf16-d128-causal or fwd-f16-d192-v128, was {}", text));
  }
  validate(problem);
  return problem;
}

Problem tuning_class(const Problem& problem) {
  Problem of_class = problem;
  bool Problem::*const feature = generator::feature_of_score(problem);
  if (feature) of_class.*feature = true;
  of_class.score = feature ? nullptr : class_of(problem.score);
  of_class.mask = class_of(problem.mask);
  of_class.ragged = of_class.paged = false;  // as batches of its usual lengths
  of_class.values_transposed = of_class.out_e4m3 = of_class.e5m2 = false;
  return of_class;
}

void validate(const Problem& problem) {
  if (!generator::has_kernels(problem.dtype))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dtype: must be {}, was {}", generator::kernel_dtypes(), to_string(problem.dtype)));
  const auto check = [](const char* name, int dim, int largest) {
    if (dim < 8 || dim > largest || dim % 8 != 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must be a multiple of 8 from 8 to {}, was {}", name, largest, dim));
  };
  check("head_dim", problem.head_dim, kLargestHeadDim);
  check("head_dim_v", problem.head_dim_v, kLargestHeadDimV);
  if (problem.paged && !problem.ragged)
    throw Error(ErrorCode::invalid_argument,
                "paged: must not be true without ragged, which says how long sequences are");
  if (problem.token_scales && !problem.e4m3)
    throw Error(ErrorCode::invalid_argument, "token_scales: must not be true without e4m3, which has scales");
  if (problem.e5m2 && !problem.e4m3)
    throw Error(ErrorCode::invalid_argument, "e5m2: must not be true without e4m3, whose place it takes");
  if (problem.e4m3) validate_e4m3(problem);
  if (problem.e4m3_queries) validate_e4m3_queries(problem);
  if (problem.fast_sums && !problem.e4m3_queries)
    throw Error(ErrorCode::invalid_argument, "fast_sums: must not be true without e4m3_queries, whose sums they are");
  if (problem.block_scales) validate_block_scales(problem);
  if (problem.k_rotary) validate_k_rotary(problem);
  if (problem.latent) validate_latent(problem);
  if (problem.values_transposed) validate_values_transposed(problem);
  if (problem.out_e4m3) validate_out_e4m3(problem);
}

std::string to_string(const ShapeBucket& bucket) {
  return fmt::format("{}-{}-{}", word_of(kQueryWords, bucket.queries), word_of(kKeyWords, bucket.keys),
                     word_of(kWorkWords, bucket.work));
}

ShapeBucket parse_shape_bucket(std::string_view text) {
  for (const ShapeBucket& bucket : shape_buckets()) {
    if (to_string(bucket) == text) return bucket;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("bucket: must be like q16-kv1k-w05 or qmore-kv8k-w2, was {}", text));
}

std::vector<ShapeBucket> shape_buckets() {
  std::vector<ShapeBucket> buckets;
  for (std::size_t queries = 0; queries < std::size(kQueryWords); ++queries) {
    for (std::size_t keys = 0; keys < std::size(kKeyWords); ++keys) {
      for (std::size_t work = 0; work < std::size(kWorkWords); ++work)
        buckets.push_back(
            {static_cast<QueryRange>(queries), static_cast<KeyRange>(keys), static_cast<WorkRange>(work)});
    }
  }
  return buckets;
}

ShapeBucket shape_bucket(const CallShape& shape, int sm_count) noexcept {
  return {query_range(shape), key_range(shape.seqlen_kv), work_range(count_tiles(shape), sm_count)};
}

}  // namespace flashjit
