// SPDX-License-Identifier: Apache-2.0
// flashjit autotune: fills the cache with kernels and tuning records.
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "cli/commands/compile_jobs.h"
#include "cli/io/command.h"
#include "cli/io/date.h"
#include "cli/io/device.h"
#include "cli/io/for_option.h"
#include "cli/io/interrupt.h"
#include "cli/io/output_file.h"
#include "cli/io/pass_options.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/tune/ceiling.h"
#include "cli/tune/report.h"
#include "cli/tune/run.h"
#include "cli/tune/shapes.h"
#include "cli/tune/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"help(For each problem and shape bucket: compiles the candidates, checks them against the reference, times them in turn, and
keeps a record in the user's cache. Calls on such a device then use the fastest. Shapes of one bucket are tuned once, by
the first of them. What has a record is not tuned again, and only its kernel is made, so a run that was interrupted, or
whose budget was spent, goes on when it is started anew. 'flashjit cache export' ships kernels and records.
docs/tuning.md tells the whole of it.

Texts of --score and --mask are not timed themselves: all that capture no tensor share records, and so do all that do. In
the table score.arithmetic and score.tensors are these classes.

--shapes FILE has a line for each shape, '#' begins a comment; dtype, head_dim and mask may be lists:
  dtype head_dim mask batch seqlen_q seqlen_kv heads_q heads_kv
  bf16 128 causal 4 4096 4096 32 8

--pass backward tunes for calls for gradients, of which those that are deterministic, and those with gradients of the
bias or the slopes, have records of their own. It times all launches of a call; gradients by a candidate must be those of
the default variant, within what rounding does.

Exit code 1 when a tuning failed. --report and --builtin take the records that there are after the run; with neither
--grid, --shapes nor --seqlen nothing is tuned for them.

Examples:
  flashjit autotune --grid forward
  flashjit autotune --shapes shapes.txt --budget 300 --device all
  flashjit autotune --head-dim 64,128 --seqlen 512,4096,64x8192 --batch 4 --heads 32 --heads-kv 8 --dry-run
  flashjit autotune --head-dim 128 --seqlen 16384 --mask "document(query) == document(key)" --capture document=ids.npy \
    --block-mask
  flashjit autotune --pass backward --grid forward
  flashjit autotune --report tuning.html)help";

struct Options {
  TuneSelection selection;
  PassOptions pass;
  std::string device, report, builtin;
  std::optional<int> budget, jobs;
  bool again = false, dry_run = false, json = false;
};

template <class OfProblem>
struct DeviceResultsOf {
  DeviceInfo device;
  std::vector<TuneResultOf<OfProblem>> results;
};
using DeviceResults = DeviceResultsOf<Problem>;

std::vector<TuningRecord> records_of(const Engine& engine, const Problem&, int device) {
  return engine.tuning_records(device);
}
std::vector<BackwardTuningRecord> records_of(const Engine& engine, const BackwardProblem&, int device) {
  return engine.backward_tuning_records(device);
}

std::vector<TuneCase> choose_cases(const Options& options) {
  const bool only_pages = options.selection.empty() && !(options.report.empty() && options.builtin.empty());
  return only_pages ? std::vector<TuneCase>() : options.selection.cases();
}

std::vector<DeviceInfo> choose_devices(const SystemInfo& system, const std::string& choice) {
  const DeviceInfo first = require_device(system, "autotune");
  if (choice.empty()) return {first};
  int ordinal = -1;
  const auto [end, error] = std::from_chars(choice.data(), choice.data() + choice.size(), ordinal);
  const bool number = error == std::errc() && end == choice.data() + choice.size();
  std::vector<DeviceInfo> chosen;
  for (const DeviceInfo& device : system.devices) {
    if (!device.architecture.empty() && (choice == "all" || (number && device.ordinal == ordinal)))
      chosen.push_back(device);
  }
  if (!chosen.empty()) return chosen;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--device: must be all or the number of a GPU that 'flashjit info' lists, was '{}'", choice));
}

void require_device_word(const std::string& choice) {
  if (choice.empty() || choice == "all" || choice.find_first_not_of("0123456789") == std::string::npos) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("--device: must be all or a number, was '{}'", choice));
}

void warn_unless_kept(const SystemInfo& system) {
  const bool kept =
      !system.cache.empty() && system.cache.front().layer == CacheLayer::user && system.cache.front().problem.empty();
  if (!kept) tell("the records are not kept: there is no user's cache ('flashjit cache path')");
}

template <class OfProblem>
std::vector<TuneResultOf<OfProblem>> tune_device(Engine& engine, const DeviceInfo& device,
                                                 const std::vector<TuneCaseOf<OfProblem>>& cases,
                                                 const Options& options, const InterruptGuard& interrupt) {
  std::vector<TuneResultOf<OfProblem>> results =
      plan_tunings(cases, records_of(engine, OfProblem{}, device.ordinal), device.sm_count, options.again);
  if (options.dry_run) return results;
  TuneRunOptions run_options;
  if (options.budget) run_options.budget_seconds = *options.budget;
  run_options.jobs = options.jobs.value_or(0);
  run_tunings(engine, device.ordinal, run_options, results);
  const bool may_compile = engine.system().policy == Policy::compile;
  if (may_compile && !InterruptGuard::pending())
    compile_chosen(engine, device.architecture, run_options.jobs, interrupt, results);
  return results;
}

template <class OfProblem>
void print_json(const std::vector<DeviceResultsOf<OfProblem>>& devices, bool dry_run) {
  Json list = Json::array();
  for (const auto& [device, results] : devices) {
    Json cells = Json::array();
    for (const auto& result : results) cells.push_back(describe(result));
    list.push_back({{"device", device.name},
                    {"ordinal", device.ordinal},
                    {"architecture", device.architecture},
                    {"cells", cells},
                    {"summary", describe(summarize_results(results))}});
  }
  print_out("{}\n", to_text({{"dry_run", dry_run}, {"devices", list}}));
}

template <class OfProblem>
void print_text(const std::vector<DeviceResultsOf<OfProblem>>& devices) {
  for (const auto& [device, results] : devices) {
    print_out("{}: {}, {}\n{}{}", device.ordinal, device.name, device.architecture, table_text(results),
              summary_text(summarize_results(results)));
  }
}

// Tells on stderr what did not go well; the exit code.
template <class OfProblem>
int report_troubles(const std::vector<DeviceResultsOf<OfProblem>>& devices, bool dry_run) {
  int failed = 0, pending = 0;
  for (const auto& [device, results] : devices) {
    for (const auto& result : results) {
      failed += result.state == TuneState::failed;
      pending += result.state == TuneState::pending;
      if (result.why.empty()) continue;
      tell("{} {}: {}", to_string(result.problem), to_string(result.bucket), result.why);
    }
  }
  if (pending != 0 && !dry_run) {
    tell("{}, {} left; what is done is kept, and the same command goes on with the rest",
         InterruptGuard::pending() ? "interrupted" : "the budget is spent", pending);
  }
  return failed == 0 ? kSuccess : kCheckFailed;
}

std::vector<ReportDevice> collect_records(Engine& engine, const std::vector<DeviceResults>& devices) {
  std::vector<ReportDevice> collected;
  for (const DeviceResults& results : devices) {
    ReportDevice device;
    device.name = results.device.name;
    device.records = engine.tuning_records(results.device.ordinal);
    const auto is_same = [&](const ReportDevice& other) {
      return !device.records.empty() && !other.records.empty() &&
             device.records.front().device == other.records.front().device;
    };
    // Devices that are alike share their records.
    if (std::any_of(collected.begin(), collected.end(), is_same)) continue;
    if (!device.records.empty()) device.ceiling = find_ceiling(engine, results.device, device.records.front().device);
    collected.push_back(std::move(device));
  }
  return collected;
}

void write_report(OutputFile& file, const std::vector<ReportDevice>& devices, const SystemInfo& system) {
  file.write(tuning_report(devices, fmt::format("flashjit {}, {}", system.version, date_now())));
  file.publish();
}

void write_builtin(OutputFile& file, const std::vector<ReportDevice>& devices) {
  std::vector<TuningRecord> records;
  for (const ReportDevice& device : devices) {
    std::copy_if(device.records.begin(), device.records.end(), std::back_inserter(records), is_complete<TuningRecord>);
  }
  file.write(for_option("--builtin", [&] { return summarize(records); }));
  file.publish();
}

template <class OfProblem>
std::vector<DeviceResultsOf<OfProblem>> tune_devices(Engine& engine, const std::vector<DeviceInfo>& chosen,
                                                     const std::vector<TuneCaseOf<OfProblem>>& cases,
                                                     const Options& options, const InterruptGuard& interrupt) {
  std::vector<DeviceResultsOf<OfProblem>> devices;
  for (const DeviceInfo& device : chosen)
    devices.push_back({device, tune_device(engine, device, cases, options, interrupt)});
  return devices;
}

// The exit code.
template <class OfProblem>
int tell(const std::vector<DeviceResultsOf<OfProblem>>& devices, bool tunes, const Options& options) {
  if (options.json) print_json(devices, options.dry_run);
  if (!options.json && tunes) print_text(devices);
  const int code = report_troubles(devices, options.dry_run);
  flush_output();  // a pending Ctrl-C ends the process when the guard goes
  return code;
}

std::vector<TuneCaseOf<BackwardProblem>> cases_of_gradients(const Options& options) {
  for (const auto& [name, file] : {std::pair{"--report", &options.report}, {"--builtin", &options.builtin}})
    if (!file->empty())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must not be given beside --pass backward, is of forward records alone", name));
  std::vector<TuneCaseOf<BackwardProblem>> cases;
  for (const auto& [problem, shape] : options.selection.cases())
    cases.push_back({options.pass.gradients_of(problem), shape});
  return cases;
}

int run_backward(const Options& options, const Session& session) {
  const std::vector<TuneCaseOf<BackwardProblem>> cases = cases_of_gradients(options);
  require_device_word(options.device);
  const InterruptGuard interrupt;
  Engine engine(session.gpu_engine_options());
  const SystemInfo system = engine.system();
  const std::vector<DeviceInfo> chosen = choose_devices(system, options.device);
  if (!options.dry_run) warn_unless_kept(system);
  return tell(tune_devices(engine, chosen, cases, options, interrupt), true, options);
}

int run(const Options& options, const Session& session) {
  if (options.pass.is_backward()) return run_backward(options, session);
  const std::vector<TuneCase> cases = choose_cases(options);
  require_device_word(options.device);
  std::optional<OutputFile> report, builtin;
  if (!options.report.empty()) report.emplace("--report", options.report);
  if (!options.builtin.empty()) builtin.emplace("--builtin", options.builtin);
  const InterruptGuard interrupt;
  Engine engine(session.gpu_engine_options());
  const SystemInfo system = engine.system();
  const std::vector<DeviceInfo> chosen = choose_devices(system, options.device);
  if (!cases.empty() && !options.dry_run) warn_unless_kept(system);
  const std::vector<DeviceResults> devices = tune_devices(engine, chosen, cases, options, interrupt);
  const int code = tell(devices, !cases.empty(), options);
  if (InterruptGuard::pending() || options.dry_run) return code;
  const std::vector<ReportDevice> records =
      report || builtin ? collect_records(engine, devices) : std::vector<ReportDevice>();
  if (report) write_report(*report, records, system);
  if (builtin) write_builtin(*builtin, records);
  return code;
}

void add_selection_options(CLI::App* autotune, TuneSelection& selection) {
  CLI::Option* grid = add_choice(autotune, "--grid", selection.grid, {"forward"}, "Tune for the cells of a grid");
  CLI::Option* shapes = add_option(autotune, "--shapes", selection.shapes, "FILE", "Tune for the shapes of this file");
  CLI::Option* seqlens = add_option(autotune, "--seqlen", selection.seqlens, "LIST",
                                    "Tune for these lengths: 4096, or 64x8192 for 64 queries and 8192 keys");
  exclude(grid, shapes);
  exclude(grid, seqlens);
  exclude(shapes, seqlens);
  const ProblemListOptions problems = add_problem_lists(autotune, selection.problems);
  exclude(problems.dtypes, shapes);
  exclude(problems.masks, shapes);
  for (CLI::Option* feature : problems.features) need(feature, seqlens);
  need(problems.head_dims, seqlens);
  constexpr Range kSizes{1, 1 << 20};
  need(add_integer(autotune, "--batch", selection.batch, "N", kSizes, "Batch entries"), seqlens);
  need(add_integer(autotune, "--heads", selection.heads, "N", kSizes, "Heads of q"), seqlens);
  need(add_integer(autotune, "--heads-kv", selection.heads_kv, "N", kSizes,
                   "Heads of k and v [default: as many as of q]"),
       seqlens);
}

}  // namespace

void add_autotune(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* autotune = add_subcommand(app, command, "autotune", "Choose variants by measurement on this GPU", kEpilog);
  add_selection_options(autotune, options->selection);
  add_pass_options(autotune, options->pass, "Variants of attention, or of its gradients");
  add_integer(autotune, "--budget", options->budget, "SECONDS", {1, 10000000},
              "For all tunings of a GPU together, shared fairly [default: 20 for each tuning]");
  add_option(autotune, "--device", options->device, "WHICH",
             "A GPU's number, or all, one after the other [default: the first]");
  add_flag(autotune, "--again", options->again, "Also tune what has a record");
  add_integer(autotune, "--jobs", options->jobs, "N", {1, kMostJobs},
              "Kernels compiled at once [default: as many as cores and free memory allow]");
  add_flag(autotune, "--dry-run", options->dry_run, "Tune nothing, and list what would be tuned");
  add_option(autotune, "--report", options->report, "FILE", "Write a page that shows all records of the GPU");
  add_option(autotune, "--builtin", options->builtin, "FILE",
             "Write the complete records as they ship inside the library: runtime/tuning/records/");
  add_flag(autotune, "--json", options->json, "Print one JSON object");
  run_when_chosen(autotune, command, options, run);
}

}  // namespace flashjit::cli
