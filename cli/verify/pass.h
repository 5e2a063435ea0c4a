// SPDX-License-Identifier: Apache-2.0
// What flashjit verify can compare: a row for each pass.
#pragma once

#include <flashjit/engine.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/text_options.h"
#include "cli/verify/cases.h"
#include "cli/verify/compared_case.h"

namespace flashjit::cli {

// What the cases of a problem have in common, but for their shape.
struct ProblemCalls {
  Problem problem;
  AttentionOptions options;  // but for tensors and texts
};

// Which random combination: it follows from these alone.
struct Draw {
  std::uint64_t seed = 0;
  bool large_heads = false;  // head dims above 256, of q and k, of v or of both
};
// A random combination of features, for one kernel.
struct RandomComparison {
  std::string problem, call;  // each in one line
  std::optional<Variant> variant;
  std::function<std::unique_ptr<ComparedCase>()> make_case;  // on the engine's device
};

struct Pass {
  const char* word;
  bool has_variants;
  // Those that the problem has, fewer and smaller ones for the emulator.
  std::vector<CaseShape> (*shapes)(const Problem& problem, bool emulated);
  std::unique_ptr<ComparedCase> (*make_case)(Engine& engine, const DeviceInfo& device, const ProblemCalls& calls,
                                             const CaseShape& shape, const Texts& texts);
  RandomComparison (*draw)(Engine& engine, const DeviceInfo& device, const Draw& draw);
};
const std::vector<Pass>& passes();             // forward is the first
const Pass& find_pass(std::string_view word);  // one of theirs

}  // namespace flashjit::cli
