// SPDX-License-Identifier: Apache-2.0
#include <flashjit/error.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/io/device.h"
#include "cli/io/output_file.h"
#include "cli/io/problem_options.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 3, kQuickRepeats = 1;
constexpr int kLookUpRepeats = 10;  // a look-up takes no time to speak of
// Small, so that the times are those of the host.
constexpr std::int64_t kBatch = 1, kSeqlen = 128, kHeads = 4;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "flashjit-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error(ErrorCode::io, name + ": " + std::strerror(errno));
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Times {
  double compile_ms = 0;  // NVRTC alone
  double cold_ms = 0;     // Engine::compile with an empty cache: source, key, NVRTC, publishing
  // Engine::compile of a kernel that is in the cache: source, key, reading, checking.
  double user_look_up_us = 0, system_look_up_us = 0, bundle_look_up_us = 0;
  double load_ms = 0;        // the first attention() of an engine whose cache is filled, to its return
  double first_call_ms = 0;  // from the making of that engine to the end of the work on the GPU
  HostCost host;
};

EngineOptions options_without_cache(const BenchContext& context, Policy policy) {
  EngineOptions options = context.session.gpu_engine_options();
  options.policy = policy;
  options.cache_directory.clear();
  options.system_cache_directories.clear();
  options.bundles.clear();
  return options;
}

EngineOptions options_with_cache(const BenchContext& context, const std::string& directory) {
  EngineOptions options = options_without_cache(context, Policy::compile);
  options.cache_directory = directory;
  return options;
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct TimedKernel {
  Problem problem;
  Variant variant;
  std::string architecture;
};

struct GpuInputs {
  GpuInputs(const Problem& problem, int device)
      : q(random({kBatch, kSeqlen, kHeads, problem.head_dim}, problem, device, 1)),
        k(random({kBatch, kSeqlen, kHeads, problem.head_dim}, problem, device, 2)),
        v(random({kBatch, kSeqlen, kHeads, problem.head_dim_v}, problem, device, 3)),
        out(DeviceTensor::allocate(problem.dtype, {kBatch, kSeqlen, kHeads, problem.head_dim_v}, nullptr, device)) {}
  static DeviceTensor random(const Dims& shape, const Problem& problem, int device, std::uint64_t seed) {
    return HostTensor::random_normal(problem.dtype, shape, seed).to_device(nullptr, device);
  }
  DeviceTensor q, k, v, out;
};

void time_cold(const BenchContext& context, const TimedKernel& job, int repeats, const std::string& last_cache,
               Times& times) {
  std::vector<double> compile, cold;
  for (int i = 0; i < repeats; ++i) {
    context.interrupt.check();
    const TemporaryDirectory own;
    Engine engine(options_with_cache(context, i + 1 == repeats ? last_cache : own.path()));
    const Clock::time_point start = Clock::now();
    compile.push_back(engine.compile(job.problem, job.variant, job.architecture).compile_ms);
    cold.push_back(milliseconds_since(start));
  }
  times.compile_ms = median(compile);
  times.cold_ms = median(cold);
}

double time_look_up(const EngineOptions& options, const TimedKernel& job) {
  std::vector<double> microseconds;
  for (int i = 0; i < kLookUpRepeats; ++i) {
    Engine engine(options);
    engine.system();  // finds NVRTC, which an engine does once
    const Clock::time_point start = Clock::now();
    engine.compile(job.problem, job.variant, job.architecture);
    microseconds.push_back(1000 * milliseconds_since(start));
  }
  return median(microseconds);
}

void write_bundle(const BenchContext& context, const TimedKernel& job, const std::string& cache,
                  const std::string& file) {
  Engine engine(options_with_cache(context, cache));
  engine.compile(job.problem, job.variant, job.architecture);
  OutputFile bundle("bundle", file);
  bundle.write(engine.bundle());
  bundle.publish();
}

void time_look_ups(const BenchContext& context, const TimedKernel& job, const std::string& cache, Times& times) {
  const EngineOptions no_cache = options_without_cache(context, Policy::cache_only);  // fails rather than compiles
  EngineOptions user = no_cache, system = no_cache, bundle = no_cache;
  user.cache_directory = cache;
  system.system_cache_directories = {cache};
  const TemporaryDirectory directory;
  bundle.bundles = {directory.path() + "/kernel.fjb"};
  write_bundle(context, job, cache, bundle.bundles.front());
  times.user_look_up_us = time_look_up(user, job);
  times.system_look_up_us = time_look_up(system, job);
  times.bundle_look_up_us = time_look_up(bundle, job);
}

void time_warm(const BenchContext& context, const TimedKernel& job, int device, int repeats, const std::string& cache,
               Times& times) {
  const GpuInputs inputs(job.problem, device);
  std::vector<unsigned char> result(inputs.out.size_bytes());
  AttentionOptions options;
  options.causal = job.problem.causal;
  options.variant = job.variant;
  std::vector<double> load, first;
  for (int i = 0; i < repeats; ++i) {
    context.interrupt.check();
    inputs.out.copy_to_host(result.data());  // nothing is pending when the clock starts
    const Clock::time_point start = Clock::now();
    Engine engine(options_with_cache(context, cache));
    const Clock::time_point call = Clock::now();
    engine.attention(inputs.q, inputs.k, inputs.v, inputs.out, options);
    load.push_back(milliseconds_since(call));
    inputs.out.copy_to_host(result.data());
    first.push_back(milliseconds_since(start));
    if (i + 1 == repeats) times.host = engine.measure_host_cost(inputs.q, inputs.k, inputs.v, inputs.out, options);
  }
  times.load_ms = median(load);
  times.first_call_ms = median(first);
}

std::vector<TimedKernel> kernels(const BenchContext& context, const std::string& architecture) {
  std::vector<TimedKernel> jobs;
  for (const int head_dim : context.options.quick ? std::vector<int>{128} : std::vector<int>{64, 128, 256}) {
    for (const bool causal : {false, true}) {
      const Problem problem{.dtype = context.dtype, .head_dim = head_dim, .head_dim_v = head_dim, .causal = causal};
      for (const Variant& variant : context.engine.default_variants(problem, architecture)) {
        jobs.push_back({problem, variant, architecture});
      }
    }
  }
  return jobs;
}

Json describe(const TimedKernel& job, const Times& times, bool on_gpu) {
  Json row = {{"problem", to_string(job.problem)},
              {"variant", to_string(job.variant)},
              {"architecture", job.architecture},
              {"compile_ms", times.compile_ms},
              {"cold_ms", times.cold_ms},
              {"user_look_up_us", times.user_look_up_us},
              {"system_look_up_us", times.system_look_up_us},
              {"bundle_look_up_us", times.bundle_look_up_us}};
  if (on_gpu) {
    row.update({{"load_ms", times.load_ms},
                {"first_call_ms", times.first_call_ms},
                {"call_us", times.host.call_us},
                {"bare_launch_us", times.host.bare_launch_us},
                {"call_over_bare_launch", times.host.call_us / times.host.bare_launch_us}});
  }
  return row;
}

std::vector<std::string> cells(const TimedKernel& job, const Times& times, bool on_gpu) {
  std::vector<std::string> row = {to_string(job.problem), to_string(job.variant),
                                  fmt::format("{:.0f}", times.compile_ms), fmt::format("{:.0f}", times.cold_ms)};
  for (const double us : {times.user_look_up_us, times.system_look_up_us, times.bundle_look_up_us}) {
    row.push_back(fmt::format("{:.0f}", us));
  }
  if (!on_gpu) return row;
  for (const double ms : {times.load_ms, times.first_call_ms}) row.push_back(fmt::format("{:.2f}", ms));
  const HostCost& host = times.host;
  for (const double us : {host.call_us, host.bare_launch_us, host.call_us / host.bare_launch_us}) {
    row.push_back(fmt::format("{:.2f}", us));
  }
  return row;
}

// Medians over all kernels, of everything that the rows have.
Json summarize(const Json& rows) {
  Json summary;
  for (const auto& [name, value] : rows.front().items()) {
    if (!value.is_number()) continue;
    std::vector<double> values;
    for (const Json& row : rows) values.push_back(row.at(name).get<double>());
    summary[name] = median(values);
  }
  return summary;
}

}  // namespace

void bench_jit(const BenchContext& context, Json& record) {
  const std::optional<DeviceInfo> gpu = usable_device(context.system);
  const std::string architecture =
      gpu ? gpu->architecture
          : choose_architecture(context.engine,
                                context.options.architecture.empty() ? "sm_90a" : context.options.architecture);
  if (!gpu) {
    tell("no GPU ({}): loading and calling are skipped", why_no_gpu(context.system));
  }
  const int repeats = context.options.repeats.value_or(context.options.quick ? kQuickRepeats : kRepeats);
  const std::vector<TimedKernel> jobs = kernels(context, architecture);
  std::vector<std::string> titles = {"<problem", "<variant",  "compile ms", "cold ms",
                                     "user us",  "system us", "bundle us"};
  if (gpu) titles.insert(titles.end(), {"load ms", "first call ms", "call us", "bare launch us", "ratio"});
  Table table(titles);
  {
    ProgressLine progress("measuring", static_cast<int>(jobs.size()));
    for (const TimedKernel& job : jobs) {
      progress.show(to_string(job.problem));
      const TemporaryDirectory cache;
      Times times;
      time_cold(context, job, repeats, cache.path(), times);
      time_look_ups(context, job, cache.path(), times);
      if (gpu) time_warm(context, job, gpu->ordinal, repeats, cache.path(), times);
      record["rows"].push_back(describe(job, times, gpu.has_value()));
      table.add_row(cells(job, times, gpu.has_value()));
      progress.advance();
    }
  }
  record["architecture"] = architecture;
  record["medians"] = summarize(record["rows"]);
  print_out(
      "{}, {} cold compiles of each kernel, then look-ups in the user's directory, a system directory, a bundle\n{}",
      architecture, repeats, table.text());
  for (const auto& [name, value] : record["medians"].items())
    print_out("median {}: {:.2f}\n", name, value.get<double>());
  if (!gpu) print_out("load, first call and host cost: skipped, no GPU\n");
}

}  // namespace flashjit::cli
