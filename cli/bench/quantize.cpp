// SPDX-License-Identifier: Apache-2.0
#include <flashjit/quantize.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/io/device.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kTokens = 16384, kHeads = 32, kBlock = 128;

struct Cell {
  std::int64_t head_dim;
  const char* scales;
  QuantizeOptions options;

  Dims shape() const { return {1, kTokens, kHeads, head_dim}; }
  bool reads_twice() const { return options.scale_of != ScaleOf::block && !options.scale_is_given; }
  // Of 16-bit elements that are read, and bytes that are written.
  double bytes() const { return static_cast<double>(kTokens * kHeads * head_dim) * (reads_twice() ? 5 : 3); }
};

std::vector<Cell> grid(bool quick) {
  struct Scales {
    const char* word;
    ScaleOf of;
    bool given;
  };
  constexpr Scales kScales[] = {{"block", ScaleOf::block, false},
                                {"given", ScaleOf::head, true},
                                {"head", ScaleOf::head, false},
                                {"tensor", ScaleOf::tensor, false}};
  std::vector<Cell> cells;
  for (const std::int64_t head_dim : quick ? std::vector<std::int64_t>{128} : std::vector<std::int64_t>{64, 128, 256})
    for (const Scales& scales : kScales)
      for (const bool rotates : {false, true}) {
        Cell cell{head_dim, scales.word, {}};
        cell.options.scale_of = scales.of, cell.options.scale_is_given = scales.given;
        if (scales.of == ScaleOf::block) cell.options.block_size = kBlock;
        if (rotates) cell.options.rotation_seed = 1;
        cells.push_back(cell);
      }
  return cells;
}

// Gigabytes a second that the memory's clock and width allow: two transfers a cycle.
double memory_rate(const DeviceInfo& gpu) {
  constexpr double kTransfers = 2, kBitsOfByte = 8;
  return kTransfers * gpu.memory_clock_mhz * 1e6 * gpu.memory_bus_bits / kBitsOfByte * 1e-9;
}

double measure_cell(const BenchContext& context, const Cell& cell, const Tensor& memory, int device) {
  const Tensor x(memory.data, memory.dtype, cell.shape());
  const DeviceTensor out = DeviceTensor::allocate(DType::e4m3, cell.shape(), nullptr, device);
  HostTensor ones(DType::f32, quantize_scale_shape(x, cell.options));
  for (std::size_t i = 0; i < ones.element_count(); ++i)
    store_element(ones.data(), DType::f32, static_cast<std::int64_t>(i), 1);
  const DeviceTensor scale = ones.to_device(nullptr, device);
  context.interrupt.check();
  return context.engine.measure(x, out, scale, cell.options, measure_options(context)).median_us;
}

}  // namespace

void bench_quantize(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid quantize");
  const std::vector<Cell> cells = grid(context.options.quick);
  const double peak = memory_rate(gpu);
  const BenchTensors tensors = make_tensors(context.dtype, cells.back().shape(), {1}, gpu.ordinal);
  Table table({"head_dim", "<scales", "<rotated", "us", "GB/s", "% of peak"});
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const Cell& cell : cells) {
      const bool rotates = cell.options.rotation_seed.has_value();
      progress.show(fmt::format("head dimension {}, scales: {}", cell.head_dim, cell.scales));
      const double us = measure_cell(context, cell, tensors.q.view(), gpu.ordinal), rate = cell.bytes() / us * 1e-3;
      progress.advance();
      record["rows"].push_back({{"head_dim", cell.head_dim},
                                {"scales", cell.scales},
                                {"rotated", rotates},
                                {"us", us},
                                {"gbs", rate},
                                {"of_peak", peak > 0 ? Json(rate / peak) : Json()}});
      table.add_row({std::to_string(cell.head_dim), cell.scales, rotates ? "yes" : "no", fmt::format("{:.1f}", us),
                     fmt::format("{:.0f}", rate), peak > 0 ? fmt::format("{:.1f}", 100 * rate / peak) : "-"});
    }
  }
  record["peak_gbs"] = peak > 0 ? Json(peak) : Json();
  print_out("{}, {} to e4m3, batch 1, {} tokens, {} heads, blocks of {} rows; the memory's peak is {:.0f} GB/s\n{}",
            gpu.name, to_string(context.dtype), kTokens, kHeads, kBlock, peak, table.text());
}

}  // namespace flashjit::cli
