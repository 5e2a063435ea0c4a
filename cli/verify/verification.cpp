// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/verification.h"

#include <memory>
#include <optional>

#include "cli/io/device.h"
#include "cli/io/parallel.h"
#include "cli/io/progress.h"

namespace flashjit::cli {
namespace {

// Without keys there is nothing that the copy engine could load: such calls take a kernel of the other family.
bool can_run(const std::optional<Variant>& variant, const CaseShape& shape) {
  return shape.seqlen_kv > 0 || !variant || std::holds_alternative<MmaVariant>(*variant);
}

// What all cases of one problem came to, for each of its variants.
class Verification {
 public:
  Verification(Engine& engine, const Pass& pass, const ProblemCalls& calls, const Texts& texts,
               const DeviceInfo& device)
      : problem_(calls.problem), emulated_(is_emulated(device)), shapes_(pass.shapes(problem_, emulated_)) {
    for (const CaseShape& shape : shapes_) cases_.push_back(pass.make_case(engine, device, calls, shape, texts));
  }

  void run(Engine& engine, const std::vector<std::optional<Variant>>& variants, const VerificationOptions& options,
           const InterruptGuard& interrupt, ProgressLine& progress) {
    outcomes_.resize(cases_.size() * variants.size());
    // An emulated kernel keeps a core busy; a GPU computes one launch after the other anyway.
    run_parallel(outcomes_.size(), emulated_ ? options.jobs : 1, interrupt, [&](std::size_t i) {
      const std::size_t shape = i / variants.size();
      const std::optional<Variant>& variant = variants[i % variants.size()];
      if (can_run(variant, shapes_[shape])) outcomes_[i] = compare(engine, *cases_[shape], variant, options);
      progress.advance();
    });
  }

  void add_to(Tally& tally, const std::vector<std::optional<Variant>>& variants) const {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const std::size_t failures_before = tally.failures.size();
      for (std::size_t shape = 0; shape < cases_.size(); ++shape) {
        if (const auto& outcome = outcomes_[shape * variants.size() + i]) add(tally, *outcome, variants[i], shape);
      }
      ++tally.kernels;
      tally.wrong_kernels += tally.failures.size() > failures_before;
    }
  }

 private:
  ScheduleOutcome compare(Engine& engine, const ComparedCase& expected, const std::optional<Variant>& variant,
                          const VerificationOptions& options) const {
    if (emulated_) return run_schedules(engine, expected, variant, options.schedules);
    ScheduleOutcome outcome;
    const std::string what = expected.problem_with(engine, variant);
    if (!what.empty()) outcome.problems = {what};
    return outcome;
  }

  void add(Tally& tally, const ScheduleOutcome& outcome, const std::optional<Variant>& variant,
           std::size_t shape) const {
    ++tally.comparisons;
    tally.runs += outcome.runs;
    tally.warp_instructions += outcome.warp_instructions;
    tally.thread_instructions += outcome.thread_instructions;
    tally.emulator_seconds += outcome.seconds;
    for (const std::string& what : outcome.problems) {
      tally.failures.push_back({to_string(problem_), spelling(variant), to_string(shapes_[shape]), what});
    }
  }

  const Problem problem_;
  const bool emulated_;
  const std::vector<CaseShape> shapes_;
  std::vector<std::unique_ptr<ComparedCase>> cases_;
  std::vector<std::optional<ScheduleOutcome>> outcomes_;  // case by case, empty where the variant cannot run it
};

}  // namespace

std::string spelling(const std::optional<Variant>& variant) { return variant ? to_string(*variant) : "default"; }

Tally verify_all(Engine& engine, const DeviceInfo& device, const std::vector<ProblemKernels>& kernels,
                 const Texts& texts, const VerificationOptions& options, const InterruptGuard& interrupt) {
  std::size_t comparisons = 0;
  for (const ProblemKernels& of_problem : kernels)
    comparisons +=
        of_problem.variants.size() * options.pass.shapes(of_problem.calls.problem, is_emulated(device)).size();
  ProgressLine progress("verifying", static_cast<int>(comparisons));
  Tally tally;
  for (const ProblemKernels& of_problem : kernels) {
    interrupt.check();
    progress.show(to_string(of_problem.calls.problem));
    Verification verification(engine, options.pass, of_problem.calls, texts, device);
    verification.run(engine, of_problem.variants, options, interrupt, progress);
    verification.add_to(tally, of_problem.variants);
  }
  return tally;
}

}  // namespace flashjit::cli
