// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/verification.h"

#include <optional>

#include "cli/io/device.h"
#include "cli/io/parallel.h"
#include "cli/io/progress.h"

namespace flashjit::cli {
namespace {

// Without keys there is nothing that the copy engine could load: such calls take a kernel of the other family.
bool can_run(const Variant& variant, const CaseShape& shape) {
  return shape.seqlen_kv > 0 || std::holds_alternative<MmaVariant>(variant);
}

std::vector<CaseShape> shapes_for(const Problem& problem, const DeviceInfo& device) {
  return shapes_for(problem, is_emulated(device) ? emulated_shapes() : verify_shapes());
}

// What all cases of one problem came to, for each of its variants.
class Verification {
 public:
  Verification(Engine& engine, const ProblemKernels& kernels, const Texts& texts, const DeviceInfo& device)
      : problem_(kernels.problem), emulated_(is_emulated(device)), shapes_(shapes_for(problem_, device)) {
    for (const CaseShape& shape : shapes_) {
      cases_.emplace_back(problem_, shape, device.ordinal, kernels.options, references_by(engine), texts);
      if (problem_.block_mask) cases_.back().make_block_mask(engine);
    }
  }

  void run(Engine& engine, const std::vector<Variant>& variants, const VerificationOptions& options,
           const InterruptGuard& interrupt, ProgressLine& progress) {
    outcomes_.resize(cases_.size() * variants.size());
    // An emulated kernel keeps a core busy; a GPU computes one launch after the other anyway.
    run_parallel(outcomes_.size(), emulated_ ? options.jobs : 1, interrupt, [&](std::size_t i) {
      const std::size_t shape = i / variants.size();
      const Variant& variant = variants[i % variants.size()];
      if (can_run(variant, shapes_[shape])) outcomes_[i] = compare(engine, cases_[shape], variant, options);
      progress.advance();
    });
  }

  void add_to(Tally& tally, const std::vector<Variant>& variants) const {
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
  ScheduleOutcome compare(Engine& engine, const VerifyCase& expected, const Variant& variant,
                          const VerificationOptions& options) const {
    if (emulated_) return run_schedules(engine, expected, variant, options.schedules);
    ScheduleOutcome outcome;
    const std::string what = expected.problem_with(engine, variant);
    if (!what.empty()) outcome.problems = {what};
    return outcome;
  }

  void add(Tally& tally, const ScheduleOutcome& outcome, const Variant& variant, std::size_t shape) const {
    ++tally.comparisons;
    tally.runs += outcome.runs;
    tally.warp_instructions += outcome.warp_instructions;
    tally.thread_instructions += outcome.thread_instructions;
    tally.emulator_seconds += outcome.seconds;
    for (const std::string& what : outcome.problems) {
      tally.failures.push_back({to_string(problem_), to_string(variant), to_string(shapes_[shape]), what});
    }
  }

  const Problem problem_;
  const bool emulated_;
  const std::vector<CaseShape> shapes_;
  std::vector<VerifyCase> cases_;
  std::vector<std::optional<ScheduleOutcome>> outcomes_;  // case by case, empty where the variant cannot run it
};

}  // namespace

Tally verify_all(Engine& engine, const DeviceInfo& device, const std::vector<ProblemKernels>& kernels,
                 const Texts& texts, const VerificationOptions& options, const InterruptGuard& interrupt) {
  std::size_t comparisons = 0;
  for (const ProblemKernels& of_problem : kernels)
    comparisons += of_problem.variants.size() * shapes_for(of_problem.problem, device).size();
  ProgressLine progress("verifying", static_cast<int>(comparisons));
  Tally tally;
  for (const ProblemKernels& of_problem : kernels) {
    interrupt.check();
    progress.show(to_string(of_problem.problem));
    Verification verification(engine, of_problem, texts, device);
    verification.run(engine, of_problem.variants, options, interrupt, progress);
    verification.add_to(tally, of_problem.variants);
  }
  return tally;
}

}  // namespace flashjit::cli
