// SPDX-License-Identifier: Apache-2.0
// What records and their making have to know of the pass whose variants they are about.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashjit/tuning.h"

namespace flashjit::runtime {

struct ForwardPass {
  using Problem = flashjit::Problem;
  using Variant = flashjit::Variant;
  using Record = TuningRecord;
  using Options = TuneOptions;
  static constexpr bool kHasBuiltinRecords = true;

  static Problem parse_problem(std::string_view text) { return flashjit::parse_problem(text); }
  static Record parse_record(std::string_view json) { return parse_tuning_record(json); }
  static std::string why_illegal(const Problem& problem, const Variant& variant, const Architecture& architecture);
  static std::vector<Variant> candidates(const Problem& problem, const Architecture& architecture);
  static Variant default_of(const Problem& problem, const ShapeBucket& bucket, const Architecture& architecture);
  // Of calls of this shape.
  static Variant default_at(const Problem& problem, const CallShape& shape, const ShapeBucket& bucket,
                            const Architecture& architecture);
};

// Of a bucket with calls of both families' defaults it is that of the smaller calls.
struct BackwardPass {
  using Problem = BackwardProblem;
  using Variant = BackwardVariant;
  using Record = BackwardTuningRecord;
  using Options = BackwardTuneOptions;
  static constexpr bool kHasBuiltinRecords = false;

  static Problem parse_problem(std::string_view text) { return parse_backward_problem(text); }
  static Record parse_record(std::string_view json) { return parse_backward_tuning_record(json); }
  static std::string why_illegal(const Problem& problem, const Variant& variant, const Architecture& architecture);
  static std::vector<Variant> candidates(const Problem& problem, const Architecture& architecture);
  static Variant default_of(const Problem& problem, const ShapeBucket& bucket, const Architecture& architecture);
  static Variant default_at(const Problem& problem, const CallShape& shape, const ShapeBucket& bucket,
                            const Architecture& architecture);
};

// By its path, which has the problem.
bool is_backward_record(std::string_view path) noexcept;

}  // namespace flashjit::runtime
