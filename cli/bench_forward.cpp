// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <future>
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

// Every cell has the same number of elements, so one allocation serves all of them under different shapes.
struct Memory {
  DeviceTensor q, k, v, out;
};

Memory make_memory(DType dtype, int device) {
  const ProgressLine progress("making random inputs");
  const Dims shape{kTokens, kHidden};
  const auto random = [&](std::uint64_t seed) {
    return std::async(std::launch::async, [=] { return HostTensor::random_normal(dtype, shape, seed); });
  };
  auto q = random(1), k = random(2), v = random(3);
  return {q.get().to_device(nullptr, device), k.get().to_device(nullptr, device), v.get().to_device(nullptr, device),
          DeviceTensor::allocate(dtype, shape, nullptr, device)};
}

void compile_first(const BenchContext& context, const std::vector<Cell>& cells, const std::string& architecture) {
  std::vector<CompileJob> jobs;
  for (const Cell& cell : cells) {
    const Variant variant =
        context.engine.default_variant(cell.problem, architecture, length_range(cell.seqlen, cell.seqlen));
    jobs.push_back({cell.problem, variant, architecture});
  }
  compile_all(context.engine, jobs, default_compile_threads(), context.interrupt);
}

Timing measure_cell(const BenchContext& context, const Memory& memory, const Cell& cell) {
  const auto view = [&](const DeviceTensor& tensor) { return Tensor(tensor.data(), tensor.dtype(), cell.shape()); };
  AttentionOptions options;
  options.causal = cell.problem.causal;
  MeasureOptions measure;
  measure.repeats = context.options.repeats.value_or(context.options.quick ? kQuickRepeats : kRepeats);
  return context.engine.measure(view(memory.q), view(memory.k), view(memory.v), view(memory.out), options, measure);
}

}  // namespace

void bench_forward(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_gpu(context.system, "bench --grid forward");
  const std::vector<Cell> cells = cells_of(context.dtype, context.options.quick);
  compile_first(context, cells, gpu.architecture);
  const Memory memory = make_memory(context.dtype, gpu.ordinal);
  const double ceiling = context.engine.measure_mma_ceiling(context.dtype, gpu.ordinal);
  record["mma_ceiling_tflops"] = ceiling;
  Table table({"head_dim", "<causal", "seqlen", "batch", "heads", "us", "TFLOPS", "% of ceiling", "<variant"});
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const Cell& cell : cells) {
      context.interrupt.check();
      progress.show(fmt::format("{}, {} tokens a sequence", to_string(cell.problem), cell.seqlen));
      const Timing timing = measure_cell(context, memory, cell);
      progress.advance();
      const Dims shape = cell.shape();
      const double rate = tflops(forward_flops(shape, cell.seqlen, shape[3], cell.problem.causal), timing.median_us);
      const Variant variant =
          context.engine.default_variant(cell.problem, gpu.architecture, length_range(cell.seqlen, cell.seqlen));
      record["rows"].push_back({{"head_dim", cell.problem.head_dim},
                                {"causal", cell.problem.causal},
                                {"seqlen", cell.seqlen},
                                {"batch", shape[0]},
                                {"heads", shape[2]},
                                {"variant", to_string(variant)},
                                {"median_us", timing.median_us},
                                {"min_us", timing.min_us},
                                {"max_us", timing.max_us},
                                {"repeats", timing.repeats},
                                {"tflops", rate},
                                {"share_of_ceiling", rate / ceiling}});
      table.add_row({std::to_string(cell.problem.head_dim), cell.problem.causal ? "yes" : "no",
                     std::to_string(cell.seqlen), std::to_string(shape[0]), std::to_string(shape[2]),
                     fmt::format("{:.1f}", timing.median_us), fmt::format("{:.1f}", rate),
                     fmt::format("{:.1f}", 100 * rate / ceiling), to_string(variant)});
    }
  }
  fmt::print("{}, {}, ceiling of mma.sync {:.1f} TFLOPS\n{}", gpu.name, to_string(context.dtype), ceiling,
             table.text());
}

}  // namespace flashjit::cli
