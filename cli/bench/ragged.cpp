// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
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

using TimesByLength = std::map<std::int64_t, double>;  // microseconds

// Of the dense kernel.
TimesByLength time_dense(const BenchContext& context, const BenchTensors& tensors, int head_dim) {
  std::vector<TimedCall> calls;
  for (const std::int64_t length : kDenseLengths) {
    const Dims shape{RaggedCell::kTokens / length, length, RaggedCell::kHidden / head_dim, head_dim};
    const auto view = [&](const DeviceTensor& tensor) { return Tensor(tensor.data(), tensor.dtype(), shape); };
    calls.push_back({view(tensors.q), view(tensors.k), view(tensors.v), view(tensors.out), {}});
    calls.back().options.causal = true;
  }
  const std::vector<double> us = time_in_turns(context, calls);
  TimesByLength times;
  for (std::size_t i = 0; i < us.size(); ++i) times[kDenseLengths[i]] = us[i];
  return times;
}

struct Result {
  RaggedCell cell;
  Variant variant;
  double us, dense_us;

  double rate() const { return tflops(cell.flops(), us); }
  double of_dense() const { return dense_us / us; }
};

Json describe(const Result& result) {
  const RaggedCell& cell = result.cell;
  return {{"batch", cell.batch},
          {"head_dim", cell.head_dim},
          {"heads", cell.heads()},
          {"sequences", cell.lengths.size()},
          {"longest", cell.longest()},
          {"tokens", RaggedCell::kTokens},
          {"variant", to_string(result.variant)},
          {"us", {{"flashjit", result.us}}},
          {"dense_us", result.dense_us},
          {"tflops", result.rate()}};
}

std::vector<std::string> table_row(const Result& result) {
  const RaggedCell& cell = result.cell;
  return {cell.batch,
          std::to_string(cell.head_dim),
          std::to_string(cell.lengths.size()),
          std::to_string(cell.longest()),
          fmt::format("{:.1f}", result.us),
          fmt::format("{:.1f}", result.rate()),
          fmt::format("{:.1f}", 100 * result.of_dense()),
          to_string(result.variant)};
}

}  // namespace

void bench_ragged(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid ragged");
  const std::vector<RaggedCell> cells = ragged_grid(context.options.quick);
  const BenchTensors tensors = make_tensors(context.dtype, {RaggedCell::kTokens, RaggedCell::kHidden}, gpu.ordinal);
  std::map<int, TimesByLength> dense;  // of each head dimension
  Table table({"<batch", "head_dim", "sequences", "longest", "us", "TFLOPS", "% of dense", "<variant"});
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const RaggedCell& cell : cells) {
      progress.show(fmt::format("{}, head dimension {}", cell.batch, cell.head_dim));
      if (dense.count(cell.head_dim) == 0) dense[cell.head_dim] = time_dense(context, tensors, cell.head_dim);
      const RaggedCall call(cell, tensors);
      const TimedCall& timed = call.timed();
      const Variant variant = context.engine.prepare(timed.q, timed.k, timed.v, timed.out, timed.options).variant;
      const Result result{cell, variant, time_in_turns(context, {timed}).front(),
                          dense_microseconds(cell.lengths, dense.at(cell.head_dim))};
      progress.advance();
      record["rows"].push_back(describe(result));
      table.add_row(table_row(result));
    }
  }
  print_out("{}, {}, {} tokens, hidden dimension {}, causal\n{}", gpu.name, to_string(context.dtype),
            RaggedCell::kTokens, RaggedCell::kHidden, table.text());
}

}  // namespace flashjit::cli
