// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/compile_jobs.h"

#include <flashjit/error.h>

#include <algorithm>
#include <thread>

#include "cli/io/parallel.h"
#include "cli/io/progress.h"

namespace flashjit::cli {
namespace {

CompileOutcome compile(Engine& engine, const CompileJob& job) {
  CompileOutcome outcome;
  try {
    outcome.kernel = job.compile(engine);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::compile_failed && error.code() != ErrorCode::unsupported) throw;
    outcome.problem = error.what();
    outcome.log = error.log();
  }
  return outcome;
}

}  // namespace

int default_compile_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

std::vector<CompileOutcome> compile_all(Engine& engine, const std::vector<CompileJob>& jobs, int threads,
                                        const InterruptGuard& interrupt) {
  std::vector<CompileOutcome> outcomes(jobs.size());
  ProgressLine progress("compiling", static_cast<int>(jobs.size()));
  run_parallel(jobs.size(), threads, interrupt, [&](std::size_t i) {
    progress.show(jobs[i].architecture + " " + jobs[i].problem);
    outcomes[i] = compile(engine, jobs[i]);
    progress.advance();
  });
  return outcomes;
}

}  // namespace flashjit::cli
