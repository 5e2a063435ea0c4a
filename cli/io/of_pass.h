// SPDX-License-Identifier: Apache-2.0
// What an engine has of each pass, by one name: for what is the same for both.
#pragma once

#include <flashjit/engine.h>

#include <string>
#include <vector>

namespace flashjit::cli {

// By a pass' problem.
template <class OfProblem>
struct PassOf;
template <>
struct PassOf<Problem> {
  using Record = TuningRecord;
  using Options = TuneOptions;
  using Progress = TuneProgress;
};
template <>
struct PassOf<BackwardProblem> {
  using Record = BackwardTuningRecord;
  using Options = BackwardTuneOptions;
  using Progress = BackwardTuneProgress;
};
template <class OfProblem>
using RecordFor = typename PassOf<OfProblem>::Record;

inline KernelFacts compile_kernel(Engine& engine, const Problem& problem, const Variant& variant,
                                  const std::string& target) {
  return engine.compile(problem, variant, target);
}
inline KernelFacts compile_kernel(Engine& engine, const BackwardProblem& problem, const BackwardVariant& variant,
                                  const std::string& target) {
  return engine.compile_backward(problem, variant, target);
}

inline std::vector<Variant> variants(const Engine& engine, const Problem& problem, const std::string& target) {
  return engine.variants(problem, target);
}
inline std::vector<BackwardVariant> variants(const Engine& engine, const BackwardProblem& problem,
                                             const std::string& target) {
  return engine.backward_variants(problem, target);
}

inline std::vector<Variant> default_variants(const Engine& engine, const Problem& problem, const std::string& target) {
  return engine.default_variants(problem, target);
}
inline std::vector<BackwardVariant> default_variants(const Engine& engine, const BackwardProblem& problem,
                                                     const std::string& target) {
  return engine.default_backward_variants(problem, target);
}

inline std::vector<Variant> recorded_variants(const Engine& engine, const Problem& problem, const std::string& target) {
  return engine.recorded_variants(problem, target);
}
inline std::vector<BackwardVariant> recorded_variants(const Engine& engine, const BackwardProblem& problem,
                                                      const std::string& target) {
  return engine.recorded_backward_variants(problem, target);
}

inline std::vector<VariantExplanation> explain_variants(const Engine& engine, const Problem& problem,
                                                        const std::string& target) {
  return engine.explain_variants(problem, target);
}
inline std::vector<BackwardVariantExplanation> explain_variants(const Engine& engine, const BackwardProblem& problem,
                                                                const std::string& target) {
  return engine.explain_backward_variants(problem, target);
}

inline TuningRecord tune(Engine& engine, const Problem& problem, const CallShape& shape, const TuneOptions& options,
                         int device) {
  return engine.tune(problem, shape, options, device);
}
inline BackwardTuningRecord tune(Engine& engine, const BackwardProblem& problem, const CallShape& shape,
                                 const BackwardTuneOptions& options, int device) {
  return engine.tune_backward(problem, shape, options, device);
}

}  // namespace flashjit::cli
