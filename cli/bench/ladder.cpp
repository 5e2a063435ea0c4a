// SPDX-License-Identifier: Apache-2.0
#include <flashjit/error.h>
#include <fmt/format.h>

#include <string>
#include <variant>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/io/device.h"
#include "cli/io/flops.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kHeads = 8, kQueries = 4096, kKeys = 8192;
constexpr int kHeadDim = 128;
// The fastest of the mma family at this shape on an H200, where the default is of another family.
constexpr const char* kMmaOnHopper = "mma-q256-kv64-w8-k2-v3-c1-rotate";

struct Step {
  std::string name;
  Variant variant;
};

Variant mma_default(const Engine& engine, const Problem& problem, const DeviceInfo& gpu) {
  const ShapeBucket bucket = shape_bucket({1, kQueries, kKeys, kHeads, kHeads}, gpu.sm_count);
  const Variant chosen = engine.default_variant(problem, gpu.architecture, bucket);
  return std::holds_alternative<MmaVariant>(chosen) ? chosen : parse_variant(kMmaOnHopper);
}

std::vector<Step> steps(const Engine& engine, const Problem& problem, const DeviceInfo& gpu) {
  std::vector<Step> steps;
  for (const char* name : {"v1", "v2", "v3", "v4", "v5"}) steps.push_back({name, parse_variant(name)});
  steps.push_back({"default", mma_default(engine, problem, gpu)});
  return steps;
}

}  // namespace

void bench_ladder(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid 5090");
  const Problem problem{.dtype = context.dtype, .head_dim = kHeadDim, .head_dim_v = kHeadDim};
  const Dims q_shape{1, kQueries, kHeads, kHeadDim}, k_shape{1, kKeys, kHeads, kHeadDim};
  const BenchTensors tensors = make_tensors(context.dtype, q_shape, k_shape, gpu.ordinal);
  ProgressLine progress("measuring");
  const double ceiling = context.engine.measure_mma_ceiling(context.dtype, gpu.ordinal);
  record["mma_ceiling_tflops"] = ceiling;
  Table table({"<step", "us", "TFLOPS", "% of speed of light", "<variant"});
  for (const Step& step : steps(context.engine, problem, gpu)) {
    context.interrupt.check();
    progress.show(step.name);
    AttentionOptions options;
    options.variant = step.variant;
    const Timing timing =
        context.engine.measure(tensors.q, tensors.k, tensors.v, tensors.out, options, measure_options(context));
    const double rate = tflops(forward_flops(q_shape, kKeys, kHeadDim, false), timing.median_us);
    record["rows"].push_back({{"step", step.name},
                              {"variant", to_string(step.variant)},
                              {"median_us", timing.median_us},
                              {"min_us", timing.min_us},
                              {"max_us", timing.max_us},
                              {"repeats", timing.repeats},
                              {"tflops", rate},
                              {"share_of_ceiling", rate / ceiling}});
    table.add_row({step.name, fmt::format("{:.1f}", timing.median_us), fmt::format("{:.1f}", rate),
                   fmt::format("{:.1f}", 100 * rate / ceiling), to_string(step.variant)});
  }
  print_out("{}, {}, ceiling of mma.sync {:.1f} TFLOPS\n{}", gpu.name, to_string(context.dtype), ceiling, table.text());
}

}  // namespace flashjit::cli
