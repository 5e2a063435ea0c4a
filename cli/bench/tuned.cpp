// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/commands/compile_jobs.h"
#include "cli/io/device.h"
#include "cli/io/forward_grid.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr int kRounds = 10, kQuickRounds = 3;
constexpr int kRepeats = 5;  // of each side in a round

struct Result {
  GridCell cell;
  Variant default_variant;
  GridVariants::Choice choice;
  std::vector<double> default_us, chosen_us, ratios;  // of each round

  // How many times as fast as the default; 1 when it is the default.
  double speedup() const { return ratios.empty() ? 1 : median(ratios); }
};

std::vector<Result> make_results(const BenchContext& context, const DeviceInfo& gpu) {
  const GridVariants variants(context.engine, context.system, gpu);
  std::vector<Result> results;
  for (const GridCell& cell : forward_grid(context.dtype, context.options.quick)) {
    results.push_back({cell, variants.default_of(cell), variants.of(cell), {}, {}, {}});
  }
  return results;
}

void compile_first(const BenchContext& context, const std::vector<Result>& results, const std::string& architecture) {
  std::vector<CompileJob> jobs;
  for (const Result& result : results) {
    jobs.push_back({result.cell.problem, result.default_variant, architecture});
    jobs.push_back({result.cell.problem, result.choice.variant, architecture});
  }
  compile_all(context.engine, jobs, default_compile_threads(), context.interrupt);
}

double measure(const BenchContext& context, const BenchTensors& memory, const GridCell& cell, const Variant& variant) {
  const auto view = [&](const DeviceTensor& tensor) { return Tensor(tensor.data(), tensor.dtype(), cell.shape()); };
  AttentionOptions options;
  options.causal = cell.problem.causal;
  options.variant = variant;
  MeasureOptions measure_options;
  measure_options.warmup = 1;
  measure_options.repeats = context.options.repeats.value_or(kRepeats);
  return context.engine
      .measure(view(memory.q), view(memory.k), view(memory.v), view(memory.out), options, measure_options)
      .median_us;
}

// The sides take turns, and in turn to be the first: whatever drifts, drifts for both.
void measure_cell(const BenchContext& context, const BenchTensors& memory, Result& result) {
  const int rounds = context.options.quick ? kQuickRounds : kRounds;
  const bool differ = result.choice.variant != result.default_variant;
  for (int round = 0; round < rounds; ++round) {
    context.interrupt.check();
    const auto time_default = [&] {
      result.default_us.push_back(measure(context, memory, result.cell, result.default_variant));
    };
    if (round % 2 == 0 || !differ) time_default();
    if (!differ) continue;
    result.chosen_us.push_back(measure(context, memory, result.cell, result.choice.variant));
    if (round % 2 != 0) time_default();
    result.ratios.push_back(result.default_us.back() / result.chosen_us.back());
  }
}

Json describe(const Result& result) {
  Json row = {{"head_dim", result.cell.problem.head_dim},
              {"causal", result.cell.problem.causal},
              {"seqlen", result.cell.seqlen},
              {"tuned", result.choice.tuned},
              {"variant", to_string(result.choice.variant)},
              {"default", to_string(result.default_variant)},
              {"default_us", median(result.default_us)},
              {"speedup", result.speedup()},
              {"round_speedups", result.ratios}};
  if (!result.chosen_us.empty()) row["variant_us"] = median(result.chosen_us);
  return row;
}

std::vector<std::string> table_row(const Result& result) {
  const bool differ = !result.chosen_us.empty();
  return {std::to_string(result.cell.problem.head_dim),
          result.cell.problem.causal ? "yes" : "no",
          std::to_string(result.cell.seqlen),
          fmt::format("{:.1f}", median(result.default_us)),
          differ ? fmt::format("{:.1f}", median(result.chosen_us)) : "",
          fmt::format("{:.3f}", result.speedup()),
          result.choice.tuned ? "record" : "default",
          differ ? to_string(result.choice.variant) : "the default"};
}

struct Summary {
  double mean = 1, smallest = 1;
  int tuned = 0, differing = 0;
};

Summary summarize(const std::vector<Result>& results) {
  Summary summary;
  double sum_of_logs = 0;
  for (const Result& result : results) {
    sum_of_logs += std::log(result.speedup());
    summary.smallest = std::min(summary.smallest, result.speedup());
    summary.tuned += result.choice.tuned;
    summary.differing += !result.chosen_us.empty();
  }
  summary.mean = std::exp(sum_of_logs / static_cast<double>(results.size()));
  return summary;
}

}  // namespace

void bench_tuned(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid tuned");
  std::vector<Result> results = make_results(context, gpu);
  compile_first(context, results, gpu.architecture);
  const BenchTensors memory = make_tensors(context.dtype, {kGridTokens, kGridHidden}, gpu.ordinal);
  Table table({"head_dim", "<causal", "seqlen", "default us", "chosen us", "speedup", "<by", "<chosen"});
  {
    ProgressLine progress("measuring", static_cast<int>(results.size()));
    for (Result& result : results) {
      progress.show(fmt::format("{}, {} tokens a sequence", to_string(result.cell.problem), result.cell.seqlen));
      measure_cell(context, memory, result);
      progress.advance();
      record["rows"].push_back(describe(result));
      table.add_row(table_row(result));
    }
  }
  const Summary summary = summarize(results);
  record["geometric_mean_speedup"] = summary.mean;
  record["smallest_speedup"] = summary.smallest;
  print_out("{}, {}: {} of {} cells have a record, {} of them another variant than the default\n{}", gpu.name,
            to_string(context.dtype), summary.tuned, results.size(), summary.differing, table.text());
  print_out("speedup: geometric mean {:.3f}, smallest {:.3f}\n", summary.mean, summary.smallest);
}

}  // namespace flashjit::cli
