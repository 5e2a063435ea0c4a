// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <string>
#include <vector>

#include "cli/bench/timed_calls.h"
#include "cli/io/device.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kPageSizes[] = {16, 64, 256};

// Half of the GPU is enough for caches beside all else.
std::vector<DecodeCell> cells_for(const BenchContext& context, const DeviceInfo& gpu) {
  std::vector<DecodeCell> cells = decode_grid(context.options.quick);
  const std::size_t all = cells.size();
  cells.erase(std::remove_if(cells.begin(), cells.end(),
                             [&](const DecodeCell& cell) {
                               return cell.cache_bytes(context.kv_dtype()) > static_cast<double>(gpu.memory_bytes) / 2;
                             }),
              cells.end());
  if (cells.size() < all) tell("{} cells are left out: their caches do not fit", all - cells.size());
  return cells;
}

// Memory that all cells share.
BenchTensors tensors_for(const BenchContext& context, const std::vector<DecodeCell>& cells, int device) {
  std::int64_t q = 0, k = 0;
  const auto elements = [](const Dims& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; };
  for (const DecodeCell& cell : cells)
    q = std::max(q, elements(cell.q_shape())), k = std::max(k, elements(cell.k_shape()));
  if (!context.options.e4m3) return make_tensors(context.dtype, Dims{q}, Dims{k}, device);
  BenchTensors tensors = make_tensors(context.dtype, Dims{q}, device);
  BenchTensors cache = make_tensors(DType::e4m3, Dims{k}, device);
  tensors.k = std::move(cache.k), tensors.v = std::move(cache.v);
  if (context.options.token_scales) {
    HostTensor near_one(DType::f32, {k / DecodeCell::kHeadDim});
    for (std::int64_t i = 0; i < near_one.shape()[0]; ++i)
      store_element(near_one.data(), DType::f32, i, 0.75 + static_cast<double>(i * 5 % 16) / 32);
    tensors.scales = near_one.to_device(nullptr, device);
  }
  return tensors;
}

struct Result {
  DecodeCell cell;
  Variant variant;         // of contiguous keys
  std::vector<double> us;  // of these, then of pages
  HostCost host;           // of a call with contiguous keys
  DType kv_dtype;

  double cache_bytes() const { return cell.cache_bytes(kv_dtype); }
  double gigabytes_per_second() const { return cache_bytes() / us[0] / 1e3; }
};

Result measure_cell(const BenchContext& context, const DecodeCell& cell, const BenchTensors& tensors) {
  std::list<DecodeCall> calls;
  calls.emplace_back(context.engine, cell, 0, tensors);
  for (const std::int64_t page_size : kPageSizes)
    if (cell.has_pages()) calls.emplace_back(context.engine, cell, page_size, tensors);
  std::vector<TimedCall> timed;
  for (const DecodeCall& call : calls) timed.push_back(call.timed());
  const TimedCall& call = timed.front();
  const HostCost host = context.engine.measure_host_cost(call.q, call.k, call.v, call.out, call.options);
  return {cell, calls.front().variant(), time_in_turns(context, timed), host, context.kv_dtype()};
}

Json describe(const Result& result) {
  const DecodeCell& cell = result.cell;
  Json us = {{"flashjit", result.us[0]}};
  for (std::size_t i = 1; i < result.us.size(); ++i) us[fmt::format("pages_{}", kPageSizes[i - 1])] = result.us[i];
  return {{"group", cell.group},
          {"batch", cell.batch},
          {"heads", cell.heads},
          {"heads_kv", cell.heads_kv},
          {"context", cell.context},
          {"queries", cell.queries},
          {"cache_bytes", result.cache_bytes()},
          {"variant", to_string(result.variant)},
          {"us", us},
          {"call_us", result.host.call_us},
          {"bare_launch_us", result.host.bare_launch_us},
          {"gigabytes_per_second", result.gigabytes_per_second()}};
}

std::vector<std::string> table_row(const Result& result) {
  const DecodeCell& cell = result.cell;
  std::vector<std::string> row = {cell.group,
                                  std::to_string(cell.batch),
                                  fmt::format("{}/{}", cell.heads, cell.heads_kv),
                                  std::to_string(cell.context),
                                  std::to_string(cell.queries),
                                  fmt::format("{:.1f}", result.us[0]),
                                  fmt::format("{:.0f}", result.gigabytes_per_second())};
  for (std::size_t i = 1; i <= std::size(kPageSizes); ++i)
    row.push_back(i < result.us.size() ? fmt::format("{:.1f}", result.us[i]) : "");
  const HostCost& host = result.host;
  for (const double us : {host.call_us, host.bare_launch_us, host.call_us / host.bare_launch_us})
    row.push_back(fmt::format("{:.2f}", us));
  row.push_back(to_string(result.variant));
  return row;
}

}  // namespace

void bench_decode(const BenchContext& context, Json& record) {
  const DeviceInfo gpu = require_device(context.system, "bench --grid decode");
  const std::vector<DecodeCell> cells = cells_for(context, gpu);
  const BenchTensors tensors = tensors_for(context, cells, gpu.ordinal);
  std::vector<std::string> titles = {"<group", "batch", "heads", "context", "queries", "us", "GB/s"};
  for (const std::int64_t page_size : kPageSizes) titles.push_back(fmt::format("pages of {} us", page_size));
  titles.insert(titles.end(), {"call us", "bare launch us", "ratio", "<variant"});
  Table table(titles);
  {
    ProgressLine progress("measuring", static_cast<int>(cells.size()));
    for (const DecodeCell& cell : cells) {
      progress.show(fmt::format("batch {}, heads {}/{}, context {}, queries {}", cell.batch, cell.heads, cell.heads_kv,
                                cell.context, cell.queries));
      const Result result = measure_cell(context, cell, tensors);
      progress.advance();
      record["rows"].push_back(describe(result));
      table.add_row(table_row(result));
    }
  }
  print_out("{}, {}{}, head dimension {}, causal\n{}", gpu.name, to_string(context.dtype),
            !context.options.e4m3          ? ""
            : context.options.token_scales ? " on e4m3 with scales of tokens"
                                           : " on e4m3",
            DecodeCell::kHeadDim, table.text());
}

}  // namespace flashjit::cli
