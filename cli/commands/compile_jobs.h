// SPDX-License-Identifier: Apache-2.0
// Many kernels compiled in parallel.
#pragma once

#include <flashjit/engine.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/io/interrupt.h"
#include "cli/io/of_pass.h"

namespace flashjit::cli {

// Of whichever pass.
struct CompileJob {
  template <class OfProblem, class OfVariant>
  CompileJob(const OfProblem& of, const OfVariant& by, const std::string& target)
      : problem(to_string(of)),
        variant(to_string(by)),
        architecture(target),
        compile([=](Engine& engine) { return compile_kernel(engine, of, by, target); }) {}

  // Of a kernel beside those, which has no variant.
  CompileJob(std::string kernel, const std::string& target, std::function<KernelFacts(Engine&)> by)
      : problem(std::move(kernel)), architecture(target), compile(std::move(by)) {}

  std::string problem, variant, architecture;
  std::function<KernelFacts(Engine& engine)> compile;
};

struct CompileOutcome {
  std::optional<KernelFacts> kernel;
  std::string problem;  // one line, when there is no kernel
  std::string log;      // of the compiler
};

// As many threads as the machine has cores.
int default_compile_threads();
inline constexpr int kMostJobs = 1024;

// Outcomes stand in the order of the jobs. A kernel that the compiler refuses is an outcome; every other Error (no
// compiler, bad input, ...) would meet all the jobs, so it stops them and is thrown. Tells its progress on stderr.
std::vector<CompileOutcome> compile_all(Engine& engine, const std::vector<CompileJob>& jobs, int threads,
                                        const InterruptGuard& interrupt);

}  // namespace flashjit::cli
