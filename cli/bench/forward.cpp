// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>
#include <variant>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/commands/compile_jobs.h"
#include "cli/io/device.h"
#include "cli/io/flops.h"
#include "cli/io/forward_grid.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

void compile_first(const BenchContext& context, const GridVariants& variants, const std::vector<GridCell>& cells,
                   const std::string& architecture) {
  std::vector<CompileJob> jobs;
  for (const GridCell& cell : cells) jobs.push_back({cell.problem, variants.of(cell).variant, architecture});
  compile_all(context.engine, jobs, default_compile_threads(), context.interrupt);
}

Timing measure_cell(const BenchContext& context, const BenchTensors& memory, const GridCell& cell,
                    const Variant& variant) {
  const auto view = [&](const DeviceTensor& tensor) { return Tensor(tensor.data(), tensor.dtype(), cell.shape()); };
  AttentionOptions options;
  options.causal = cell.problem.causal;
  options.variant = variant;
  return context.engine.measure(view(memory.q), view(memory.k), view(memory.v), view(memory.out), options,
                                measure_options(context));
}

struct Result {
  GridCell cell;
  GridVariants::Choice choice;
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
              {"variant", to_string(result.choice.variant)},
              {"tuned", result.choice.tuned},
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
          result.choice.tuned ? "record" : "default",
          to_string(result.choice.variant)};
}

}  // namespace

void bench_forward(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid forward");
  const std::vector<GridCell> cells = forward_grid(context.dtype, context.options.quick);
  const GridVariants variants(context.engine, context.system, gpu);
  compile_first(context, variants, cells, gpu.architecture);
  // Every cell has the same number of elements, so one allocation serves all of them under different shapes.
  const BenchTensors memory = make_tensors(context.dtype, {kGridTokens, kGridHidden}, gpu.ordinal);
  const double ceiling = context.engine.measure_mma_ceiling(context.dtype, gpu.ordinal);
  record["mma_ceiling_tflops"] = ceiling;
  Table table({"head_dim", "<causal", "seqlen", "batch", "heads", "us", "TFLOPS", "% of ceiling", "<by", "<variant"});
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const GridCell& cell : cells) {
      context.interrupt.check();
      progress.show(fmt::format("{}, {} tokens a sequence", to_string(cell.problem), cell.seqlen));
      const GridVariants::Choice choice = variants.of(cell);
      Result result{cell, choice, measure_cell(context, memory, cell, choice.variant), 0, {}};
      progress.advance();
      const Dims shape = cell.shape();
      result.tflops = tflops(forward_flops(shape, cell.seqlen, shape[3], cell.problem.causal), result.timing.median_us);
      if (std::holds_alternative<MmaVariant>(choice.variant)) result.share_of_ceiling = result.tflops / ceiling;
      record["rows"].push_back(describe(result));
      table.add_row(table_row(result));
    }
  }
  print_out("{}, {}, ceiling of mma.sync {:.1f} TFLOPS\n{}", gpu.name, to_string(context.dtype), ceiling, table.text());
}

}  // namespace flashjit::cli
