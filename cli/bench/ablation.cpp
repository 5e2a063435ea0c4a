// SPDX-License-Identifier: Apache-2.0
#include <flashjit/error.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/commands/compile_jobs.h"
#include "cli/io/device.h"
#include "cli/io/flops.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr const char* kArchitecture = "sm_90a";
constexpr std::int64_t kBatch = 4, kSeqlen = 8448, kHeads = 16, kHeadDim = 128;
// The rows take turns, so that a drift of the clock meets all of them.
constexpr int kRounds = 5, kQuickRounds = 1;

// What all rows share; a row names what differs.
constexpr const char* kBase = "hopper-q128-kv128-s2-qs1-whole-2stage-ppgemm-ws-pregs-cl1-rare-fixed-natural-split";

struct Step {
  const char* name;
  const char* change;
  std::optional<int> paper_tflops;  // "FlashAttention-3" (2024), table 2, on an H100
};
// Three stages keep the scores of two blocks in registers, where 128 keys do not fit; so both depths stand there
// with 96.
constexpr Step kSteps[] = {
    {"2-stage", "ppoff", {}},
    {"2-stage", "ppgemm", 661},
    {"2-stage, 96 keys", "kv96-ppoff", {}},
    {"2-stage, 96 keys", "kv96-ppgemm", {}},
    {"3-stage, 96 keys", "kv96-3stage-ppoff", {}},
    {"3-stage, 96 keys", "kv96-3stage-ppgemm", {}},
    {"no GEMM-softmax pipelining", "serial-ppoff", {}},
    {"no GEMM-softmax pipelining", "serial-ppgemm", 570},
    {"no GEMM-softmax pipelining", "serial-ppsoftmax", {}},
    {"no warp specialisation", "nows-ppoff", 582},
    {"no warp specialisation", "nows-ppgemm", {}},
};

const char* name_of(PingPong ping_pong) {
  switch (ping_pong) {
    case PingPong::off:
      return "off";
    case PingPong::gemm:
      return "GEMM";
    case PingPong::softmax:
      return "softmax";
  }
  return "";
}

struct Row {
  Step step;
  HopperVariant variant;
  std::vector<double> medians_us;  // of each round

  double median_us() const { return median(medians_us); }
  double tflops() const {
    return cli::tflops(forward_flops({kBatch, kSeqlen, kHeads, kHeadDim}, kSeqlen, kHeadDim, false), median_us());
  }
};

std::vector<Row> make_rows() {
  std::vector<Row> rows;
  for (const Step& step : kSteps)
    rows.push_back({step, std::get<HopperVariant>(parse_variant(step.change, parse_variant(kBase))), {}});
  return rows;
}

void compile_first(const BenchContext& context, const std::vector<Row>& rows) {
  const Problem problem{.dtype = context.dtype, .head_dim = kHeadDim, .head_dim_v = kHeadDim};
  std::vector<CompileJob> jobs;
  for (const Row& row : rows) jobs.push_back({problem, row.variant, kArchitecture});
  compile_all(context.engine, jobs, default_compile_threads(), context.interrupt);
}

void measure_round(const BenchContext& context, const BenchTensors& tensors, std::vector<Row>& rows,
                   ProgressLine& progress) {
  const MeasureOptions measure = measure_options(context);
  for (Row& row : rows) {
    context.interrupt.check();
    progress.show(to_string(Variant(row.variant)));
    AttentionOptions options;
    options.variant = row.variant;
    row.medians_us.push_back(
        context.engine.measure(tensors.q, tensors.k, tensors.v, tensors.out, options, measure).median_us);
    progress.advance();
  }
}

Json describe(const Row& row) {
  Json json = {{"step", row.step.name},
               {"ping_pong", name_of(row.variant.ping_pong)},
               {"variant", to_string(Variant(row.variant))},
               {"median_us", row.median_us()},
               {"rounds_us", row.medians_us},
               {"tflops", row.tflops()}};
  if (row.step.paper_tflops) json["fa3_paper_tflops"] = *row.step.paper_tflops;
  return json;
}

}  // namespace

std::vector<Variant> ablation_variants() {
  std::vector<Variant> variants;
  for (const Row& row : make_rows()) variants.push_back(row.variant);
  return variants;
}

void bench_ablation(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid ablation");
  if (gpu.architecture != kArchitecture) {
    throw Error(ErrorCode::unsupported, fmt::format("bench --grid ablation: the GPU must be of {}, was {} ({})",
                                                    kArchitecture, gpu.architecture, gpu.name));
  }
  std::vector<Row> rows = make_rows();
  compile_first(context, rows);
  const BenchTensors tensors = make_tensors(context.dtype, {kBatch, kSeqlen, kHeads, kHeadDim}, gpu.ordinal);
  const int rounds = context.options.quick ? kQuickRounds : kRounds;
  {
    ProgressLine progress("measuring", rounds * static_cast<int>(rows.size()));
    for (int round = 0; round < rounds; ++round) measure_round(context, tensors, rows, progress);
  }
  Table table({"<", "<ping-pong", "us", "TFLOPS", "FA3 paper (H100)", "<variant"});
  for (const Row& row : rows) {
    record["rows"].push_back(describe(row));
    table.add_row({row.step.name, name_of(row.variant.ping_pong), fmt::format("{:.1f}", row.median_us()),
                   fmt::format("{:.1f}", row.tflops()),
                   row.step.paper_tflops ? std::to_string(*row.step.paper_tflops) : "",
                   to_string(Variant(row.variant))});
  }
  print_out("{}, {}, batch {}, {} tokens, {} heads, head dimension {}\n{}", gpu.name, to_string(context.dtype), kBatch,
            kSeqlen, kHeads, kHeadDim, table.text());
}

}  // namespace flashjit::cli
