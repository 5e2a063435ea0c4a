// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>
#include <variant>
#include <vector>

#include "cli/bench.h"
#include "cli/compile_jobs.h"
#include "cli/device.h"
#include "cli/flops.h"
#include "cli/problem_options.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kHidden = 2048;
constexpr int kRepeats = 30, kQuickRepeats = 5;

struct Cell {
  Problem problem;
  std::int64_t seqlen;

  Dims shape() const { return {kTokens / seqlen, seqlen, kHidden / problem.head_dim, problem.head_dim}; }
};

std::vector<Cell> cells_of(DType dtype, bool quick) {
  const std::vector<std::int64_t> seqlens = quick ? std::vector<std::int64_t>{512, 4096, 16384}
                                                  : std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192, 16384};
  std::vector<Cell> cells;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t seqlen : seqlens) cells.push_back({{dtype, head_dim, head_dim, causal}, seqlen});
    }
  }
  return cells;
}

Variant variant_of(const BenchContext& context, const Cell& cell, const std::string& architecture) {
  return context.engine.default_variant(cell.problem, architecture, length_range(cell.seqlen, cell.seqlen));
}

void compile_first(const BenchContext& context, const std::vector<Cell>& cells, const std::string& architecture) {
  std::vector<CompileJob> jobs;
  for (const Cell& cell : cells) jobs.push_back({cell.problem, variant_of(context, cell, architecture), architecture});
  compile_all(context.engine, jobs, default_compile_threads(), context.interrupt);
}

Timing measure_cell(const BenchContext& context, const BenchTensors& memory, const Cell& cell) {
  const auto view = [&](const DeviceTensor& tensor) { return Tensor(tensor.data(), tensor.dtype(), cell.shape()); };
  AttentionOptions options;
  options.causal = cell.problem.causal;
  MeasureOptions measure;
  measure.repeats = context.options.repeats.value_or(context.options.quick ? kQuickRepeats : kRepeats);
  return context.engine.measure(view(memory.q), view(memory.k), view(memory.v), view(memory.out), options, measure);
}

struct Result {
  Cell cell;
  Variant variant;
  Timing timing;
  double tflops;
  std::optional<double> share_of_ceiling;  // of mma.sync: of the family that uses it
};

Json describe(const Result& result) {
  const Dims shape = result.cell.shape();
  Json row = {{"head_dim", result.cell.problem.head_dim},
              {"causal", result.cell.problem.causal},
              {"seqlen", result.cell.seqlen},
              {"batch", shape[0]},
              {"heads", shape[2]},
              {"variant", to_string(result.variant)},
              {"median_us", result.timing.median_us},
              {"min_us", result.timing.min_us},
              {"max_us", result.timing.max_us},
              {"repeats", result.timing.repeats},
              {"tflops", result.tflops}};
  if (result.share_of_ceiling) row["share_of_ceiling"] = *result.share_of_ceiling;
  return row;
}

std::vector<std::string> table_row(const Result& result) {
  const Dims shape = result.cell.shape();
  return {std::to_string(result.cell.problem.head_dim),
          result.cell.problem.causal ? "yes" : "no",
          std::to_string(result.cell.seqlen),
          std::to_string(shape[0]),
          std::to_string(shape[2]),
          fmt::format("{:.1f}", result.timing.median_us),
          fmt::format("{:.1f}", result.tflops),
          result.share_of_ceiling ? fmt::format("{:.1f}", 100 * *result.share_of_ceiling) : "",
          to_string(result.variant)};
}

}  // namespace

void bench_forward(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid forward");
  const std::vector<Cell> cells = cells_of(context.dtype, context.options.quick);
  compile_first(context, cells, gpu.architecture);
  // Every cell has the same number of elements, so one allocation serves all of them under different shapes.
  const BenchTensors memory = make_tensors(context.dtype, {kTokens, kHidden}, gpu.ordinal);
  const double ceiling = context.engine.measure_mma_ceiling(context.dtype, gpu.ordinal);
  record["mma_ceiling_tflops"] = ceiling;
  Table table({"head_dim", "<causal", "seqlen", "batch", "heads", "us", "TFLOPS", "% of ceiling", "<variant"});
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const Cell& cell : cells) {
      context.interrupt.check();
      progress.show(fmt::format("{}, {} tokens a sequence", to_string(cell.problem), cell.seqlen));
      Result result{cell, variant_of(context, cell, gpu.architecture), measure_cell(context, memory, cell), 0, {}};
      progress.advance();
      const Dims shape = cell.shape();
      result.tflops = tflops(forward_flops(shape, cell.seqlen, shape[3], cell.problem.causal), result.timing.median_us);
      if (std::holds_alternative<MmaVariant>(result.variant)) result.share_of_ceiling = result.tflops / ceiling;
      record["rows"].push_back(describe(result));
      table.add_row(table_row(result));
    }
  }
  fmt::print("{}, {}, ceiling of mma.sync {:.1f} TFLOPS\n{}", gpu.name, to_string(context.dtype), ceiling,
             table.text());
}

}  // namespace flashjit::cli
