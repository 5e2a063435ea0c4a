// SPDX-License-Identifier: Apache-2.0
// flashjit verify: do the kernels compute the right numbers, on this GPU or in the emulator?
#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/commands/compile_jobs.h"
#include "cli/io/command.h"
#include "cli/io/device.h"
#include "cli/io/problem_options.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"
#include "cli/io/text_options.h"
#include "cli/verify/random_verification.h"
#include "cli/verify/verification.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"help(Compiles the variants in parallel, then runs each over shapes with odd lengths, lengths of 0 and 1, grouped heads and
rows that see no key, with outliers in the inputs and poisoned outputs, and over scores that ramp, jump, spike or are
infinite. The bound is that of FlashAttention's tests: twice the error of a plain low-precision computation, plus two
roundings. Exit code 1 if a kernel is wrong, 2 if there is no GPU.

With --device emulate no GPU is needed. The kernels of any architecture run in the emulator, over fewer and smaller
shapes, each under several schedules: which warp runs next and when copies complete. The emulator must find nothing (no
race, no read of what was never written, ...), and every schedule must give the same bytes.

With --latent or --k-rotary, and without --head-dim, head dims are those of MLA, 576x512.

With --pass backward it is gradients of Q, K and V, which start from output and LSE of the reference, by the kernels that calls
get; masks and scores are as above, but for pages and e4m3, and scores so far from 0 that an LSE of f32 does not give
their probabilities again. The gradient of Q is a sum in any order, so it is right under every schedule, and the others
give the same bytes.

With --random each combination is a problem of its own with one call: any features together, texts with captures of any
kind, any head dims, lengths and strides, a block mask or none, a variant of either family or the default, in many cases
with hard scores, rows that see no key, or NaN in a row. All of it follows from the seed, with which what is wrong is
listed: --random 1 --seed SEED runs it again, beside --large-heads if it was there.

Examples:
  flashjit verify
  flashjit verify --head-dim 64,128 --dtype bf16 --all-variants --json
  flashjit verify --head-dim 128 --window 1023,0 --softcap 30 --alibi
  flashjit verify --head-dim 64 --chunk 100 --sinks
  flashjit verify --head-dim 128 --bias --bias-dtype f32 --documents
  flashjit verify --head-dim 64 --mask causal --mask "(query - key) % step == 0" --capture step=4 --block-mask
  flashjit verify --pass backward --head-dim 64,128
  flashjit verify --latent --device emulate --arch sm_90a
  flashjit verify --random 2000
  flashjit verify --random 1000 --large-heads
  flashjit verify --pass backward --random 500 --seed 7
  flashjit verify --device emulate --arch sm_90a --head-dim 64 --mask causal --schedules 20)help";

constexpr const char* kHeadDimsOfMla = "576x512";

struct Options {
  std::string pass = passes().front().word;
  CallProblemLists problems{{"bf16,f16", "8,40,64,80,96,128,192x128,64x256,256", "full,causal", {}}, {}};
  std::string variant;
  bool all_variants = false, json = false;
  std::optional<int> random;
  bool large_heads = false;
  const CLI::Option* head_dims = nullptr;
  std::vector<const CLI::Option*> not_with_random, not_with_backward;
  int jobs = default_compile_threads();
  DeviceChoice device;
  std::optional<int> schedules;
  std::optional<std::uint64_t> seed;
};

// What the model prunes here may be the default of another device.
std::vector<Variant> every_variant(const Engine& engine, const Problem& problem, const std::string& architecture) {
  using Verdict = VariantExplanation::Verdict;
  std::vector<Variant> variants;
  for (const VariantExplanation& each : engine.explain_variants(problem, architecture))
    if (each.verdict == Verdict::kept || each.verdict == Verdict::pruned) variants.push_back(each.variant);
  return variants;
}

std::vector<Variant> variants_to_verify(const Engine& engine, const Problem& problem, const std::string& architecture,
                                        const Options& options) {
  if (!options.variant.empty()) return {choose_variant(engine, options.variant, problem, architecture)};
  if (options.all_variants) return every_variant(engine, problem, architecture);
  const std::vector<Variant> listed = engine.variants(problem, architecture);
  std::vector<Variant> chosen = engine.default_variants(problem, architecture);
  for (const char* step : {"v1", "v2", "v3", "v4", "v5"}) {
    const Variant variant = parse_variant(step);
    const bool fits = std::find(listed.begin(), listed.end(), variant) != listed.end();
    if (fits && std::find(chosen.begin(), chosen.end(), variant) == chosen.end()) chosen.push_back(variant);
  }
  return chosen;
}

Json describe(const Failure& failure) {
  return {{"problem", failure.problem}, {"variant", failure.variant}, {"shape", failure.shape}, {"what", failure.what}};
}

Json describe(const SystemInfo& system, const DeviceInfo& device) {
  return {{"device", device.name},
          {"architecture", device.architecture},
          {"driver", system.driver_version},
          {"nvrtc", system.nvrtc_version},
          {"version", system.version}};
}

void print_json(const SystemInfo& system, const DeviceInfo& device, const Schedules& schedules, const Tally& tally) {
  Json json = describe(system, device);
  json.update({{"kernels", tally.kernels}, {"comparisons", tally.comparisons}, {"wrong_kernels", tally.wrong_kernels}});
  if (is_emulated(device)) {
    json.update({{"schedules", schedules.count},
                 {"seed", schedules.first_seed},
                 {"runs", tally.runs},
                 {"warp_instructions", tally.warp_instructions},
                 {"thread_instructions", tally.thread_instructions},
                 {"emulator_seconds", tally.emulator_seconds}});
  }
  json["failures"] = Json::array();
  for (const Failure& failure : tally.failures) json["failures"].push_back(describe(failure));
  print_out("{}\n", to_text(json));
}

void print_text(const DeviceInfo& device, const Schedules& schedules, const Tally& tally) {
  constexpr double kMillion = 1e6;
  Table table({"<problem", "<variant", "<shape", "<what"});
  for (const Failure& f : tally.failures) table.add_row({f.problem, f.variant, f.shape, f.what});
  if (!table.empty()) print_out("{}", table.text());
  print_out("{}: {} kernels, {} comparisons, {} kernels wrong\n", device.name, tally.kernels, tally.comparisons,
            tally.wrong_kernels);
  if (!is_emulated(device)) return;
  print_out("{} runs, {} schedules from seed {}: {:.1f} million warp instructions, {:.1f} million a second per core\n",
            tally.runs, schedules.count, schedules.first_seed, static_cast<double>(tally.warp_instructions) / kMillion,
            static_cast<double>(tally.warp_instructions) / kMillion / std::max(tally.emulator_seconds, 1e-9));
}

void print_json(const SystemInfo& system, const DeviceInfo& device, const Combinations& combinations,
                const std::vector<RandomFailure>& failures) {
  Json json = describe(system, device);
  json.update({{"combinations", combinations.count}, {"seed", combinations.first_seed}, {"wrong", failures.size()}});
  json["failures"] = Json::array();
  for (const RandomFailure& each : failures) {
    Json failure = {{"seed", each.seed}};
    failure.update(describe(each.failure));
    json["failures"].push_back(failure);
  }
  print_out("{}\n", to_text(json));
}

void print_text(const DeviceInfo& device, const Combinations& combinations,
                const std::vector<RandomFailure>& failures) {
  for (const auto& [seed, failure] : failures)
    print_out("--seed {}: {}\n  {}\n  {}\n  {}\n", seed, failure.what, failure.problem, failure.variant, failure.shape);
  print_out("{}: {} random combinations from seed {}, {} wrong\n", device.name, combinations.count,
            combinations.first_seed, failures.size());
}

std::vector<ProblemKernels> kernels_to_verify(const Engine& engine, const std::vector<Problem>& problems,
                                              const std::string& architecture, const Options& options) {
  std::vector<ProblemKernels> kernels;
  for (const Problem& problem : problems) {
    kernels.push_back({{problem, options.problems.features.options(problem.causal)}, {std::nullopt}});
    if (!find_pass(options.pass).has_variants) continue;
    const std::vector<Variant> variants = variants_to_verify(engine, problem, architecture, options);
    kernels.back().variants.assign(variants.begin(), variants.end());
  }
  return kernels;
}

// Of the GPU and with a variant; the emulator's are compiled by the first case that needs them, beside those that run
// already.
void compile_kernels(Engine& engine, const std::vector<ProblemKernels>& kernels, const std::string& architecture,
                     int threads, const InterruptGuard& interrupt) {
  std::vector<CompileJob> jobs;
  for (const ProblemKernels& of_problem : kernels) {
    for (const std::optional<Variant>& variant : of_problem.variants)
      if (variant) jobs.push_back({of_problem.calls.problem, *variant, architecture});
  }
  for (const CompileOutcome& outcome : compile_all(engine, jobs, threads, interrupt)) {
    if (!outcome.kernel) throw Error(ErrorCode::compile_failed, outcome.problem, outcome.log);
  }
}

EngineOptions engine_options(const Options& options, const Session& session) {
  EngineOptions chosen = session.engine_options();
  choose_device(options.device, chosen);
  return chosen;
}

void require_emulated(const DeviceInfo& device, const char* option, const char* condition, bool was_given) {
  if (was_given && !is_emulated(device))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: must be given only with {}", option, condition));
}

Schedules choose_schedules(const Options& options, const DeviceInfo& device) {
  require_emulated(device, "--schedules", "--device emulate", options.schedules.has_value());
  require_emulated(device, "--seed", "--device emulate or --random", options.seed && !options.random);
  Schedules chosen;
  chosen.count = options.schedules.value_or(chosen.count);
  chosen.first_seed = options.seed.value_or(chosen.first_seed);
  return chosen;
}

void require_absent(const std::vector<const CLI::Option*>& options, const char* beside) {
  for (const CLI::Option* option : options) {
    if (was_given(option))
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: must not be given with {}", name_of(option), beside));
  }
}

void require_fitting(const Options& options) {
  if (options.random) require_absent(options.not_with_random, "--random, which draws it");
  if (!find_pass(options.pass).has_variants)
    require_absent(options.not_with_backward, "--pass backward, whose kernels have no such thing yet");
}

// What all that is compared is compared on, and how.
struct Place {
  Engine& engine;
  const SystemInfo& system;
  const DeviceInfo& device;
  const VerificationOptions options;
};

bool verify_combinations(const Options& options, const Place& place, const InterruptGuard& interrupt) {
  const Combinations combinations{*options.random, place.options.schedules.first_seed, options.large_heads};
  const std::vector<RandomFailure> failures =
      verify_random(place.engine, place.device, combinations, place.options, interrupt);
  if (options.json) {
    print_json(place.system, place.device, combinations, failures);
  } else {
    print_text(place.device, combinations, failures);
  }
  return failures.empty();
}

bool verify_problems(const Options& options, const std::vector<Problem>& problems, const Texts& texts,
                     const Place& place, const InterruptGuard& interrupt) {
  const std::string& architecture = place.device.architecture;
  const std::vector<ProblemKernels> kernels = kernels_to_verify(place.engine, problems, architecture, options);
  if (!is_emulated(place.device)) compile_kernels(place.engine, kernels, architecture, options.jobs, interrupt);
  const Tally tally = verify_all(place.engine, place.device, kernels, texts, place.options, interrupt);
  if (options.json) {
    print_json(place.system, place.device, place.options.schedules, tally);
  } else {
    print_text(place.device, place.options.schedules, tally);
  }
  return tally.wrong_kernels == 0;
}

// What MLA's caches have is of large heads alone: of their own ones, where none are asked for.
std::vector<Problem> problems_to_verify(const Options& options, const Texts& texts) {
  CallProblemLists lists = options.problems;
  if ((lists.features.k_rotary || lists.features.latent) && !was_given(options.head_dims))
    lists.head_dims = kHeadDimsOfMla;
  return lists.problems(texts);
}

int run(const Options& options, const Session& session) {
  require_fitting(options);
  const Texts texts(options.problems.texts);
  const std::vector<Problem> problems = problems_to_verify(options, texts);
  const InterruptGuard interrupt;
  Engine engine(engine_options(options, session));
  const SystemInfo system = engine.system();
  const DeviceInfo device = require_device(system, "verify");
  const Place place{engine, system, device, {find_pass(options.pass), options.jobs, choose_schedules(options, device)}};
  const bool right = options.random ? verify_combinations(options, place, interrupt)
                                    : verify_problems(options, problems, texts, place, interrupt);
  return right ? kSuccess : kCheckFailed;
}

// Which problems and variants; --random draws them.
void add_problem_choices(CLI::App* verify, Options& options) {
  const ProblemListOptions lists = add_problem_lists(verify, options.problems);
  options.head_dims = lists.head_dims;
  CLI::Option* const variant = add_option(verify, "--variant", options.variant, "VARIANT",
                                          "This variant alone [default: the defaults of all buckets and the steps v1 "
                                          "to v5]");
  CLI::Option* const all_variants = add_flag(verify, "--all-variants", options.all_variants,
                                             "Every variant that is listed or pruned by 'flashjit variants --explain'");
  exclude(all_variants, variant);
  options.not_with_backward = {variant, all_variants};
  for (const CLI::Option* feature : lists.features) {
    const std::string name = name_of(feature);
    for (const char* without : {"--paged", "--e4m3", "--token-scales", "--e4m3-queries", "--fast-sums", "--block-mask",
                                "--k-rotary", "--latent", "--values-transposed", "--out-e4m3", "--e5m2"})
      if (name == without) options.not_with_backward.push_back(feature);
  }
  options.not_with_random = {lists.dtypes, lists.head_dims, lists.masks, variant, all_variants};
  options.not_with_random.insert(options.not_with_random.end(), lists.features.begin(), lists.features.end());
  CLI::Option* const random =
      add_integer(verify, "--random", options.random, "N", {1, 1000000},
                  "Instead of these, N random combinations of features, each with a kernel and a call of its own");
  CLI::Option* const large_heads = add_flag(verify, "--large-heads", options.large_heads,
                                            "Each with head dims above 256; of gradients with what has them there");
  need(large_heads, random);
}

}  // namespace

void add_verify(CLI::App& app, Command& command) {
  const auto options = std::make_shared<Options>();
  CLI::App* verify = add_subcommand(app, command, "verify",
                                    "Compare the kernels on this GPU, or emulated, with the reference", kEpilog);
  std::vector<std::string> words;
  for (const Pass& pass : passes()) words.push_back(pass.word);
  add_choice(verify, "--pass", options->pass, words, "What is compared: output and LSE, or gradients");
  add_problem_choices(verify, *options);
  add_integer(verify, "--jobs", options->jobs, "N", {1, kMostJobs},
              "Kernels compiled or emulated at once; each keeps one core busy");
  add_choice(verify, "--device", options->device.device, {"auto", "gpu", "emulate"},
             "gpu, emulate, or auto: FLASHJIT_DEVICE, else gpu");
  add_emulated_architecture_option(verify, options->device);
  add_integer(verify, "--schedules", options->schedules, "N", {1, 1000000},
              fmt::format("With --device emulate: schedules of each case [default: {}]", Schedules().count));
  add_seed(verify, "--seed", options->seed,
           "With --device emulate: of the first schedule; with --random: of the first combination; the others count on "
           "from it [default: 0]");
  add_flag(verify, "--json", options->json, "Print one JSON object");
  run_when_chosen(verify, command, options, run);
}

}  // namespace flashjit::cli
