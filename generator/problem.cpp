// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>

#include "flashjit/error.h"
#include "flashjit/problem.h"

namespace flashjit {

std::string to_string(const Problem& problem) {
  std::string text = fmt::format("fwd-{}-d{}", to_string(problem.dtype), problem.head_dim);
  if (problem.head_dim_v != problem.head_dim) text += fmt::format("-v{}", problem.head_dim_v);
  if (problem.causal) text += "-causal";
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
  for (const DType dtype : {DType::f16, DType::bf16}) {
    if (take(std::string("fwd-") + to_string(dtype))) problem.dtype = dtype;
  }
  if (take("-d")) take_number(problem.head_dim);
  problem.head_dim_v = problem.head_dim;
  if (take("-v")) take_number(problem.head_dim_v);
  problem.causal = take("-causal");
  // Whatever was skipped, missing or left over shows here.
  if (to_string(problem) != text) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("problem: must be like fwd-bf16-d128-causal or fwd-f16-d192-v128, was {}", text));
  }
  validate(problem);
  return problem;
}

void validate(const Problem& problem) {
  if (problem.dtype != DType::f16 && problem.dtype != DType::bf16)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dtype: must be f16 or bf16, was {}", to_string(problem.dtype)));
  const auto check = [](const char* name, int dim) {
    if (dim < 8 || dim > 256 || dim % 8 != 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must be a multiple of 8 from 8 to 256, was {}", name, dim));
  };
  check("head_dim", problem.head_dim);
  check("head_dim_v", problem.head_dim_v);
}

const char* to_string(LengthRange range) noexcept {
  switch (range) {
    case LengthRange::few_queries:
      return "few_queries";
    case LengthRange::short_kv:
      return "short_kv";
    case LengthRange::medium_kv:
      return "medium_kv";
    case LengthRange::long_kv:
      return "long_kv";
    case LengthRange::huge_kv:
      return "huge_kv";
  }
  return "?";
}

LengthRange length_range(std::int64_t seqlen_q, std::int64_t seqlen_kv) noexcept {
  constexpr std::int64_t kFewQueries = 64;
  constexpr std::int64_t kMediumKv = 1024, kLongKv = 2048, kHugeKv = 8192;
  if (seqlen_q <= kFewQueries) return LengthRange::few_queries;
  if (seqlen_kv < kMediumKv) return LengthRange::short_kv;
  if (seqlen_kv < kLongKv) return LengthRange::medium_kv;
  return seqlen_kv < kHugeKv ? LengthRange::long_kv : LengthRange::huge_kv;
}

}  // namespace flashjit
