// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/bench/timed_calls.h"
#include "cli/io/device.h"
#include "cli/io/flops.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

struct Result {
  WindowCell cell;
  Variant variant;  // of both
  double window_us, plain_us, tflops;

  // The time over the share of the blocks: what a window costs beside what its blocks must.
  double over_share() const { return window_us / plain_us / share_of_blocks(cell, variant); }
};

// What calls with the window get, and the same kernel without one.
Result measure_cell(const BenchContext& context, const WindowCell& cell, const BenchTensors& tensors) {
  const auto view = [&](const DeviceTensor& tensor) { return Tensor(tensor.data(), tensor.dtype(), cell.shape()); };
  TimedCall plain{view(tensors.q), view(tensors.k), view(tensors.v), view(tensors.out), {}};
  plain.options.causal = true;
  TimedCall window = plain;
  window.options.window = {cell.window, 0};
  const Variant variant = context.engine.prepare(window.q, window.k, window.v, window.out, window.options).variant;
  plain.options.variant = window.options.variant = variant;
  const std::vector<double> us = time_in_turns(context, {window, plain});
  const double flops = forward_flops(cell.shape(), WindowCell::kSeqlen, cell.head_dim, window.options);
  return {cell, variant, us[0], us[1], tflops(flops, us[0])};
}

Json describe(const Result& result) {
  return {{"head_dim", result.cell.head_dim},     {"window", result.cell.window},
          {"variant", to_string(result.variant)}, {"window_us", result.window_us},
          {"plain_us", result.plain_us},          {"share_of_blocks", share_of_blocks(result.cell, result.variant)},
          {"over_share", result.over_share()},    {"tflops", result.tflops}};
}

std::vector<std::string> table_row(const Result& result) {
  return {std::to_string(result.cell.head_dim),
          std::to_string(result.cell.window),
          fmt::format("{:.1f}", result.window_us),
          fmt::format("{:.1f}", result.tflops),
          fmt::format("{:.1f}", result.plain_us),
          fmt::format("{:.1f}", 100 * share_of_blocks(result.cell, result.variant)),
          fmt::format("{:.3f}", result.over_share()),
          to_string(result.variant)};
}

}  // namespace

void bench_window(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid window");
  const std::vector<WindowCell> cells = window_grid(context.options.quick);
  const BenchTensors tensors = make_tensors(context.dtype, {WindowCell::kSeqlen, WindowCell::kHidden}, gpu.ordinal);
  Table table({"head_dim", "window", "us", "TFLOPS", "without us", "% of blocks", "over share", "<variant"});
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const WindowCell& cell : cells) {
      progress.show(fmt::format("head dimension {}, window {}", cell.head_dim, cell.window));
      const Result result = measure_cell(context, cell, tensors);
      progress.advance();
      record["rows"].push_back(describe(result));
      table.add_row(table_row(result));
    }
  }
  print_out("{}, {}, batch 1, {} tokens, hidden dimension {}, causal\n{}", gpu.name, to_string(context.dtype),
            WindowCell::kSeqlen, WindowCell::kHidden, table.text());
}

}  // namespace flashjit::cli
