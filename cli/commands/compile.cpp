// SPDX-License-Identifier: Apache-2.0
// flashjit compile: fills the cache, without a GPU.
#include <flashjit/error.h>
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "cli/cache/report.h"
#include "cli/commands/compile_jobs.h"
#include "cli/io/command.h"
#include "cli/io/for_option.h"
#include "cli/io/output_file.h"
#include "cli/io/pass_options.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog = R"help(

Needs NVRTC but no GPU and no driver. What is in the cache already is not compiled again. The filled directory
(FLASHJIT_CACHE_DIR) can be copied to machines that have neither a toolkit nor NVRTC; so can the one file that --bundle
writes, which programs find by FLASHJIT_BUNDLES or link in. For a bundle alone, FLASHJIT_POLICY=off leaves the disk be.
What append and merge launch depends on precisions alone; --serving adds it, once for each of --dtype.
With --pass backward kernels are those of calls for gradients, with all that such calls launch beside the one that is
listed; a variant of theirs is spelled as 'flashjit variants --pass backward' prints it, and a part of it changes
mma-q64-kv128-w8-r1-s1. Training wants both passes.
Exit code 2 when a kernel was compiled and could be stored neither in the directory nor in a bundle.

Examples:
  flashjit compile --arch sm_90a
  flashjit compile --arch sm_80,sm_90a,sm_120a --dtype bf16,f16 --head-dim 64,128,192x128
  flashjit compile --arch all --head-dim all --jobs 8 --json
  flashjit compile --arch sm_90a --pass backward --deterministic --mask causal
  flashjit compile --arch sm_90a --mask causal --score "score - slope(head) * abs(query - key)" --capture slope=f32:1
  FLASHJIT_POLICY=off flashjit compile --arch sm_90a --bundle kernels.fjb)help";

struct Options {
  CallProblemLists problems{{}, {.masks = {}, .score = {}, .captures = {}, .types_suffice = true}};
  PassOptions pass;
  std::string architectures, variant = "chosen";
  std::string bundle;  // empty: none
  int jobs = default_compile_threads();
  bool serving = false, json = false;
};

std::vector<Variant> choose_variants(const Engine& engine, const std::string& text, const Problem& problem,
                                     const std::string& architecture) {
  if (text == "all") return engine.variants(problem, architecture);
  if (text == "chosen") return chosen_variants(engine, problem, architecture);
  if (text == "default") return engine.default_variants(problem, architecture);
  return {choose_variant(engine, text, problem, architecture)};
}

std::vector<BackwardVariant> choose_variants(const Engine& engine, const std::string& text,
                                             const BackwardProblem& problem, const std::string& architecture) {
  if (text == "all") return engine.backward_variants(problem, architecture);
  if (text == "chosen") return chosen_variants(engine, problem, architecture);
  if (text == "default") return engine.default_backward_variants(problem, architecture);
  return for_option("--variant", [&] {
    const BackwardVariant variant = parse_backward_variant(text);
    engine.render_backward(problem, variant, architecture);  // refuses what is not legal
    return std::vector{variant};
  });
}

template <class OfProblem>
void add_jobs(const Engine& engine, const Options& options, const std::vector<OfProblem>& problems,
              const std::string& architecture, std::vector<CompileJob>& jobs) {
  for (const OfProblem& problem : problems)
    for (const auto& variant : choose_variants(engine, options.variant, problem, architecture))
      jobs.emplace_back(problem, variant, architecture);
}

// PTX ISA 8.1, "cvt".
bool converts_to_8_bits(const std::string& architecture) {
  const Architecture& target = find_architecture(architecture);
  return std::pair(target.major, target.minor) >= std::pair(8, 9);
}

void add_append_jobs(DType dtype, DType cache, const std::string& architecture, std::vector<CompileJob>& jobs) {
  AppendProblem problem;
  problem.dtype = dtype, problem.cache_dtype = cache;
  const auto add = [&](const std::string& rotary) {
    jobs.emplace_back(fmt::format("append-{}{}{}", to_string(dtype),
                                  cache == dtype ? "" : fmt::format("-{}", to_string(cache)), rotary),
                      architecture, [=](Engine& engine) { return engine.compile_append(problem, architecture); });
  };
  add("");
  for (const bool interleaved : {false, true}) {
    for (const DType table : {DType::f16, DType::bf16, DType::f32}) {
      problem.rotary = table, problem.rotary_interleaved = interleaved;
      add(fmt::format("-rotary-{}-{}", interleaved ? "neighbours" : "halves", to_string(table)));
    }
  }
}

void add_merge_job(DType part, DType out, const std::string& architecture, std::vector<CompileJob>& jobs) {
  jobs.emplace_back(fmt::format("merge-{}-{}", to_string(part), to_string(out)), architecture,
                    [=](Engine& engine) { return engine.compile_merge(part, out, architecture); });
}

// Of what serving calls beside attention, each once.
void add_serving_jobs(const std::vector<DType>& dtypes, const std::string& architecture,
                      std::vector<CompileJob>& jobs) {
  for (const DType dtype : dtypes) {
    add_append_jobs(dtype, dtype, architecture, jobs);
    if (converts_to_8_bits(architecture))
      for (const DType cache : {DType::e4m3, DType::e5m2}) add_append_jobs(dtype, cache, architecture, jobs);
    add_merge_job(dtype, dtype, architecture, jobs);
    add_merge_job(dtype, DType::f32, architecture, jobs);
    add_merge_job(DType::f32, dtype, architecture, jobs);
  }
  add_merge_job(DType::f32, DType::f32, architecture, jobs);
}

std::vector<CompileJob> make_jobs(const Engine& engine, const Options& options) {
  std::vector<CompileJob> jobs;
  const Texts texts(options.problems.texts);
  const std::vector<Problem> problems = options.problems.problems(texts);
  const bool is_backward = options.pass.is_backward();
  for (const std::string& architecture : parse_architectures(engine, options.architectures)) {
    if (is_backward)
      add_jobs(engine, options, options.pass.gradients_of(problems), architecture, jobs);
    else
      add_jobs(engine, options, problems, architecture, jobs);
    if (options.serving) add_serving_jobs(parse_dtypes("--dtype", options.problems.dtypes), architecture, jobs);
  }
  return jobs;
}

Json describe(const CompileJob& job, const CompileOutcome& outcome) {
  Json json = {{"problem", job.problem}, {"variant", job.variant}, {"architecture", job.architecture}};
  if (!outcome.kernel) {
    json["error"] = outcome.problem;
    return json;
  }
  const KernelFacts& kernel = *outcome.kernel;
  json.update({{"name", kernel.name},
               {"origin", to_string(kernel.origin)},
               {"compile_ms", kernel.compile_ms},
               {"threads", kernel.threads},
               {"registers", kernel.registers},
               {"spill_bytes", kernel.spill_bytes},
               {"stack_bytes", kernel.stack_bytes},
               {"shared_memory_bytes", kernel.shared_memory_bytes},
               {"cubin_bytes", kernel.cubin_bytes},
               {"cache_file", kernel.cache_file.empty() ? Json() : Json(kernel.cache_file)}});
  if (!kernel.cache_problem.empty()) json["cache_problem"] = kernel.cache_problem;
  return json;
}

struct Summary {
  int compiled = 0, reused = 0, failed = 0;
  double wall_seconds = 0;
};

void count(const std::vector<CompileOutcome>& outcomes, Summary& summary) {
  for (const CompileOutcome& outcome : outcomes) {
    if (!outcome.kernel) {
      ++summary.failed;
    } else if (outcome.kernel->origin == KernelFacts::Origin::compiled) {
      ++summary.compiled;
    } else {
      ++summary.reused;
    }
  }
}

void print_table(const std::vector<CompileJob>& jobs, const std::vector<CompileOutcome>& outcomes,
                 const Summary& summary) {
  Table table({"<arch", "<problem", "<variant", "<origin", "ms", "registers", "spills", "smem", "cubin bytes"});
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string &problem = jobs[i].problem, &variant = jobs[i].variant;
    if (!outcomes[i].kernel) {
      table.add_row({jobs[i].architecture, problem, variant, "failed"});
      continue;
    }
    const KernelFacts& kernel = *outcomes[i].kernel;
    table.add_row({jobs[i].architecture, problem, variant, to_string(kernel.origin),
                   fmt::format("{:.0f}", kernel.compile_ms), fmt::format("{}", kernel.registers),
                   fmt::format("{}", kernel.spill_bytes), fmt::format("{}", kernel.shared_memory_bytes),
                   fmt::format("{}", kernel.cubin_bytes)});
  }
  print_out("{}{} kernels: {} compiled, {} already cached, {} failed, in {:.1f} s\n", table.text(), jobs.size(),
            summary.compiled, summary.reused, summary.failed, summary.wall_seconds);
}

void print_json(const std::vector<CompileJob>& jobs, const std::vector<CompileOutcome>& outcomes,
                const Summary& summary) {
  Json kernels = Json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) kernels.push_back(describe(jobs[i], outcomes[i]));
  print_out("{}\n", to_text({{"kernels", kernels},
                             {"compiled", summary.compiled},
                             {"cached", summary.reused},
                             {"failed", summary.failed},
                             {"wall_seconds", summary.wall_seconds}}));
}

void report_failures(const std::vector<CompileOutcome>& outcomes, bool with_logs) {
  for (const CompileOutcome& outcome : outcomes) {
    if (outcome.kernel) continue;
    tell("{}", outcome.problem);
    if (with_logs) write_message(outcome.log + "\n");
  }
}

void write_bundle(const Engine& engine, const Summary& summary, OutputFile& file) {
  if (summary.failed != 0) {
    tell("--bundle: {} is not written, because kernels failed", file.path());
    return;
  }
  file.write(engine.bundle());
  file.publish();
}

// Tells of kernels that were compiled and are nowhere but in the memory of this process.
bool report_unstored(const std::vector<CompileOutcome>& outcomes) {
  int unstored = 0;
  std::string why;
  for (const CompileOutcome& outcome : outcomes) {
    if (!outcome.kernel || !outcome.kernel->cache_file.empty()) continue;
    ++unstored;
    if (why.empty()) why = outcome.kernel->cache_problem;
  }
  if (unstored == 0) return false;
  if (why.empty()) why = "there is no directory for them ('flashjit cache path'); FLASHJIT_CACHE_DIR gives one";
  tell("{} of {} kernels could not be stored: {}", unstored, outcomes.size(), why);
  return true;
}

int exit_code(const Summary& summary, bool unstored) {
  if (unstored) return kError;
  return summary.failed == 0 ? kSuccess : kCheckFailed;
}

int run(const Options& options, const Session& session) {
  std::optional<OutputFile> bundle;
  if (!options.bundle.empty()) bundle.emplace("--bundle", options.bundle, kWritableByOthers);
  const InterruptGuard interrupt;
  const EngineOptions engine_options = session.engine_options();
  if (engine_options.policy == Policy::off && !bundle) {
    throw Error(ErrorCode::invalid_argument,
                "FLASHJIT_POLICY: must not be off without --bundle, as the kernels would be stored nowhere");
  }
  Engine engine(engine_options);
  const std::vector<CompileJob> jobs = make_jobs(engine, options);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<CompileOutcome> outcomes = compile_all(engine, jobs, options.jobs, interrupt);
  Summary summary;
  summary.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  count(outcomes, summary);
  if (bundle) write_bundle(engine, summary, *bundle);
  (options.json ? print_json : print_table)(jobs, outcomes, summary);
  report_failures(outcomes, session.verbose);
  if (session.verbose) tell("{}", counters_text(engine.counters()));
  const bool unstored = engine_options.policy == Policy::compile && report_unstored(outcomes);
  return exit_code(summary, unstored && (!bundle || summary.failed != 0));
}

}  // namespace

void add_compile(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* compile = add_subcommand(app, command, "compile", "Compile kernels into the cache; needs no GPU",
                                     kVariantEpilog + std::string(kEpilog));
  add_option(compile, "--arch", options->architectures, kArchListType,
             "Targets, for example sm_80,sm_90a, or all [default: that of the first GPU]");
  add_pass_options(compile, options->pass, "Kernels of attention, or of its gradients");
  add_problem_lists(compile, options->problems);
  add_option(
      compile, "--variant", options->variant, "VARIANT",
      "One variant, see below; chosen: those that attention() chooses from; default: of them those of the default "
      "rules, without tuning records; all: all that are listed");
  add_flag(
      compile, "--serving", options->serving,
      "Also what serving calls beside attention: append, with rotary embedding of either kind and without, and merge");
  add_integer(compile, "--jobs", options->jobs, "N", {1, kMostJobs},
              "Kernels compiled at once; each keeps one core busy");
  add_option(compile, "--bundle", options->bundle, "FILE",
             "Also write a bundle of these kernels, unless one of them fails");
  add_flag(compile, "--json", options->json, "Print one JSON object");
  run_when_chosen(compile, command, options, run);
}

}  // namespace flashjit::cli
