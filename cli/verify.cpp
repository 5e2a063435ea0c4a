// SPDX-License-Identifier: Apache-2.0
// flashjit verify: do the kernels compute the right numbers on this GPU?
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/compile_jobs.h"
#include "cli/device.h"
#include "cli/problem_options.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/verify_cases.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(Compiles the variants in parallel, then runs each over shapes with odd lengths, lengths of 0 and 1, grouped heads and
rows that see no key, with outliers in the inputs and poisoned outputs, and over scores that ramp, jump, spike or are
infinite. The bound is that of FlashAttention's tests: twice the error of a plain low-precision computation, plus two
roundings. Exit code 1 if a kernel is wrong, 2 if there is no GPU.

Examples:
  flashjit verify
  flashjit verify --head-dim 64,128 --dtype bf16 --all-variants --json)";

struct Options {
  std::string head_dims = "8,40,64,80,96,128,192x128,64x256,256", dtypes = "bf16,f16", causal = "both";
  bool all_variants = false, json = false;
  int jobs = default_compile_threads();
};

std::vector<Variant> variants_to_verify(const Engine& engine, const Problem& problem, const std::string& architecture,
                                        bool all) {
  const std::vector<Variant> legal = engine.variants(problem, architecture);
  if (all) return legal;
  std::vector<Variant> chosen = default_variants(engine, problem, architecture);
  for (const char* step : {"v1", "v2", "v3", "v4", "v5"}) {
    const Variant variant = parse_variant(step);
    const bool fits = std::find(legal.begin(), legal.end(), variant) != legal.end();
    if (fits && std::find(chosen.begin(), chosen.end(), variant) == chosen.end()) chosen.push_back(variant);
  }
  return chosen;
}

struct Failure {
  std::string problem, variant, shape, what;
};

struct Tally {
  int kernels = 0, comparisons = 0, wrong_kernels = 0;
  std::vector<Failure> failures;
};

// Without keys there is nothing that the copy engine could load: such calls take a kernel of the other family.
bool can_run(const Variant& variant, const CaseShape& shape) {
  return shape.seqlen_kv > 0 || std::holds_alternative<MmaVariant>(variant);
}

// All cases of one problem for each of its variants.
void verify_problem(Engine& engine, const DeviceInfo& gpu, const Problem& problem, const std::vector<Variant>& variants,
                    const InterruptGuard& interrupt, ProgressLine& progress, Tally& tally) {
  std::vector<bool> wrong(variants.size(), false);
  progress.show(to_string(problem));
  for (const CaseShape& shape : verify_shapes()) {
    const VerifyCase expected(problem, shape, gpu.ordinal);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      interrupt.check();
      if (!can_run(variants[i], shape)) continue;
      const std::string what = expected.problem_with(engine, variants[i]);
      ++tally.comparisons;
      if (what.empty()) continue;
      wrong[i] = true;
      tally.failures.push_back({to_string(problem), to_string(variants[i]), to_string(shape), what});
    }
  }
  for (std::size_t i = 0; i < variants.size(); ++i) progress.advance();
  tally.kernels += static_cast<int>(variants.size());
  tally.wrong_kernels += static_cast<int>(std::count(wrong.begin(), wrong.end(), true));
}

void print_json(const SystemInfo& system, const DeviceInfo& gpu, const Tally& tally) {
  Json failures = Json::array();
  for (const Failure& failure : tally.failures) {
    failures.push_back(
        {{"problem", failure.problem}, {"variant", failure.variant}, {"shape", failure.shape}, {"what", failure.what}});
  }
  fmt::print("{}\n", to_text({{"device", gpu.name},
                              {"architecture", gpu.architecture},
                              {"driver", system.driver_version},
                              {"nvrtc", system.nvrtc_version},
                              {"version", system.version},
                              {"kernels", tally.kernels},
                              {"comparisons", tally.comparisons},
                              {"wrong_kernels", tally.wrong_kernels},
                              {"failures", failures}}));
}

void print_text(const DeviceInfo& gpu, const Tally& tally) {
  Table table({"<problem", "<variant", "<shape", "<what"});
  for (const Failure& f : tally.failures) table.add_row({f.problem, f.variant, f.shape, f.what});
  if (!table.empty()) fmt::print("{}", table.text());
  fmt::print("{}: {} kernels, {} comparisons, {} kernels wrong\n", gpu.name, tally.kernels, tally.comparisons,
             tally.wrong_kernels);
}

std::vector<CompileJob> jobs_for(const Problem& problem, const std::vector<Variant>& variants,
                                 const std::string& architecture) {
  std::vector<CompileJob> jobs;
  for (const Variant& variant : variants) jobs.push_back({problem, variant, architecture});
  return jobs;
}

int run(const Options& options, const Session& session) {
  const InterruptGuard interrupt;
  const std::vector<Problem> problems =
      combine(parse_dtypes(options.dtypes), parse_head_dims(options.head_dims), parse_causal(options.causal));
  Engine engine(session.engine_options());
  const SystemInfo system = engine.system();
  const DeviceInfo gpu = require_gpu(system, "verify");
  std::vector<std::vector<Variant>> variants;
  std::vector<CompileJob> jobs;
  for (const Problem& problem : problems) {
    variants.push_back(variants_to_verify(engine, problem, gpu.architecture, options.all_variants));
    const std::vector<CompileJob> more = jobs_for(problem, variants.back(), gpu.architecture);
    jobs.insert(jobs.end(), more.begin(), more.end());
  }
  for (const CompileOutcome& outcome : compile_all(engine, jobs, options.jobs, interrupt)) {
    if (!outcome.kernel) throw Error(ErrorCode::compile_failed, outcome.problem, outcome.log);
  }
  Tally tally;
  {
    ProgressLine progress("verifying", static_cast<int>(jobs.size()));
    for (std::size_t i = 0; i < problems.size(); ++i) {
      verify_problem(engine, gpu, problems[i], variants[i], interrupt, progress, tally);
    }
  }
  if (options.json) {
    print_json(system, gpu, tally);
  } else {
    print_text(gpu, tally);
  }
  return tally.wrong_kernels == 0 ? kSuccess : kCheckFailed;
}

}  // namespace

void add_verify(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* verify =
      add_subcommand(app, command, "verify", "Compare the kernels on this GPU with the reference", kEpilog);
  add_option(verify, "--head-dim", options->head_dims, "LIST", kHeadDimListHelp);
  add_option(verify, "--dtype", options->dtypes, "LIST", "Precisions: bf16, f16");
  add_option(verify, "--causal", options->causal, "WHICH", "Causal mask: no, yes or both");
  verify->add_flag("--all-variants", options->all_variants,
                   "Every legal variant [default: the defaults of all length ranges and the steps v1 to v5]");
  add_option(verify, "--jobs", options->jobs, "N", "Kernels compiled at once; each keeps one core busy")
      ->check(CLI::Range(1, 1024));
  verify->add_flag("--json", options->json, "Print one JSON object");
  run_when_chosen(verify, command, options, run);
}

}  // namespace flashjit::cli
