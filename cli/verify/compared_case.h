// SPDX-License-Identifier: Apache-2.0
// A case that kernels compute and that is compared with the reference, of whatever pass.
#pragma once

#include <flashjit/emulator.h>
#include <flashjit/engine.h>
#include <flashjit/reference.h>

#include <optional>
#include <string>
#include <vector>

namespace flashjit::cli {

struct CaseOutput {
  const char* name;        // "out", "lse", "dq", ...
  HostTensor values;       // packed, whatever the layout of the case
  bool any_order = false;  // a sum whose order, and so its last bits, schedules decide
};
using CaseOutputs = std::vector<CaseOutput>;

class ComparedCase {
 public:
  virtual ~ComparedCase() = default;

  // What the kernels leave in poisoned memory, on the engine's device, which must be the case's. Without a variant the
  // library chooses one.
  virtual CaseOutputs run(Engine& engine, const std::optional<Variant>& variant) const = 0;
  // The same on an engine that emulates, with all that the emulator found.
  virtual CaseOutputs emulate(Engine& engine, const std::optional<Variant>& variant, const EmulationOptions& options,
                              emulator::Report& report) const = 0;
  // Empty when all of them are right; else what is wrong, in one line.
  virtual std::string problem_with(CaseOutputs outputs) const = 0;
  std::string problem_with(Engine& engine, const std::optional<Variant>& variant) const {  // runs it first
    return problem_with(run(engine, variant));
  }
};

// Empty where the comparison passed.
std::string problem_with(const char* name, const reference::Comparison& comparison);

}  // namespace flashjit::cli
