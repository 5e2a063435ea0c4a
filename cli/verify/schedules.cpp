// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/schedules.h"

#include <flashjit/emulator.h>
#include <flashjit/error.h>
#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "cli/io/interrupt.h"

namespace flashjit::cli {
namespace {

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return std::memcmp(a.data(), b.data(), a.element_count() * size_of(a.dtype())) == 0;
}

std::vector<std::string> describe(const emulator::Report& report) {
  std::vector<std::string> lines;
  for (const emulator::Finding& finding : report.findings) lines.push_back(to_string(finding));
  return lines;
}

void count(const emulator::Report& report, ScheduleOutcome& outcome) {
  ++outcome.runs;
  outcome.warp_instructions += report.counters.warp_instructions;
  outcome.thread_instructions += report.counters.thread_instructions;
  outcome.seconds += report.seconds;
}

// A case under one schedule after the other.
class ScheduledCase {
 public:
  ScheduledCase(Engine& engine, const ComparedCase& expected, const std::optional<Variant>& variant)
      : engine_(engine), expected_(expected), variant_(variant) {}

  void run(std::uint64_t seed) {
    try {
      outcome_.problems = problems_under(seed);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kernel_fault) throw;
      outcome_.problems = {error.what()};
    }
    for (std::string& problem : outcome_.problems) problem = fmt::format("seed {}: {}", seed, problem);
  }
  const ScheduleOutcome& outcome() const { return outcome_; }

 private:
  std::vector<std::string> problems_under(std::uint64_t seed) {
    EmulationOptions emulation;
    emulation.seed = seed;
    emulator::Report report;
    CaseOutputs outputs = expected_.emulate(engine_, variant_, emulation, report);
    count(report, outcome_);
    if (!report.clean()) return describe(report);
    const std::string what = first_ ? difference_from_first(outputs) : expected_.problem_with(outputs);
    if (!first_) first_ = std::move(outputs);
    return what.empty() ? std::vector<std::string>() : std::vector{what};
  }

  std::string difference_from_first(const CaseOutputs& outputs) const {
    bool any_order = false;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      any_order |= outputs[i].any_order;
      if (!outputs[i].any_order && !same_bytes(outputs[i].values, (*first_)[i].values))
        return fmt::format("{}: the bytes are not those of the first seed", outputs[i].name);
    }
    return any_order ? expected_.problem_with(outputs) : "";
  }

  Engine& engine_;
  const ComparedCase& expected_;
  const std::optional<Variant>& variant_;
  std::optional<CaseOutputs> first_;
  ScheduleOutcome outcome_;
};

}  // namespace

ScheduleOutcome run_schedules(Engine& engine, const ComparedCase& expected, const std::optional<Variant>& variant,
                              const Schedules& schedules) {
  ScheduledCase scheduled(engine, expected, variant);
  for (int i = 0; i < schedules.count && scheduled.outcome().problems.empty() && !InterruptGuard::pending(); ++i) {
    scheduled.run(schedules.first_seed + static_cast<std::uint64_t>(i));
  }
  return scheduled.outcome();
}

}  // namespace flashjit::cli
