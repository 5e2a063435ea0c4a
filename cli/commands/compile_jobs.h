// SPDX-License-Identifier: Apache-2.0
// Many kernels compiled in parallel.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/io/interrupt.h"

namespace flashjit::cli {

struct CompileJob {
  Problem problem;
  Variant variant;
  std::string architecture;
};

struct CompileOutcome {
  std::optional<KernelInfo> kernel;
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
