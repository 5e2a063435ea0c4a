// SPDX-License-Identifier: Apache-2.0
// flashjit bench: chooses the grid and writes the record.
#include "cli/bench/bench.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <iterator>
#include <numeric>

#include "cli/io/date.h"
#include "cli/io/device.h"
#include "cli/io/output_file.h"
#include "cli/io/progress.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog = R"(Grids:
  forward  the grid of the FlashAttention-3 paper: 16384 tokens, hidden dimension 2048, head dimensions 64, 128 and 256,
           causal or not, sequence lengths 512 to 16384. TFLOPS, and for the mma family the share of the measured
           ceiling of mma.sync. Variants are those that calls get: of tuning records, where there are some.
  tuned    on the same grid, what records choose beside the defaults, which take turns with them.
  ablation table 2 of that paper: f16, batch 4, 16 heads, head dimension 128, 8448 tokens. What pipelining, ping-pong
           and warp specialisation are worth, beside the paper's figures. Needs sm_90a.
  5090     the steps v1 to v5 of the RTX 5090 write-up and a default variant of the mma family: batch 1, 8 heads, head
           dimension 128, 4096 queries, 8192 keys. Share of the speed of light, the measured ceiling of mma.sync.
  decode   one query and a few of each sequence against caches of keys, contiguous and in pages of 16, 64 and 256 rows,
           with a plan: batch 1 to 64, 1024 to 131072 keys, head dimension 128. GB/s of keys and values, with --e4m3 of
           a cache of half as many bytes. Host time of a call with contiguous keys beside bare launches of its kernels.
  ragged   packed sequences of different lengths, 65536 tokens and a hidden dimension of 2048, causal. TFLOPS, and the
           share of the rate that the dense kernel has at the same lengths.
  window   sliding windows of 256, 1024 and 4096 keys, 16384 tokens, hidden dimension 2048, beside the same kernel without
           one: its time over the share of the blocks of keys that are left.
  quantize rows made e4m3, with scales of blocks of 128 rows, given ones, of heads and of the tensor, rotated or not: 16384
           tokens, 32 heads, head dimensions 64, 128 and 256. GB/s of what is read and written, as often as that is, and
           their share of the memory's peak.
  accuracy table 3 of the FlashAttention-3 paper: what e4m3 costs, with one scale and with scales of blocks of 128 rows,
           rotated or not, beside f16 and bf16. Normal numbers, of which one in a thousand is an outlier, 1024 queries,
           head dimension 128, 1024 and 8448 keys, 8 seeds. Without a GPU in the emulator (--arch), for minutes.
  jit      per kernel: cold compile, look-up in a filled cache, load from it, host cost of a call beside a bare launch.
           Without a GPU only compiling and looking up.
Times are medians; kernels are timed by events with a cold L2 cache. A causal mask counts as half of the operations.
The cells of decode and ragged are those of bench/compare_peers.py, which times decoding in graphs, without what a launch
by itself costs.

Examples:
  flashjit bench --grid forward --json forward.json
  flashjit bench --grid ablation
  flashjit bench --grid 5090 --repeats 100
  flashjit bench --grid decode --json decode.json
  flashjit bench --grid jit --quick)";

struct Grid {
  const char* name;
  void (*run)(const BenchContext&, Json&);
  const char* dtype;  // unless another one is asked for
};
constexpr Grid kGrids[] = {{"forward", bench_forward, "bf16"},  {"tuned", bench_tuned, "bf16"},
                           {"ablation", bench_ablation, "f16"}, {"5090", bench_ladder, "bf16"},
                           {"decode", bench_decode, "bf16"},    {"ragged", bench_ragged, "bf16"},
                           {"window", bench_window, "bf16"},    {"quantize", bench_quantize, "bf16"},
                           {"accuracy", bench_accuracy, "f16"}, {"jit", bench_jit, "bf16"}};

std::vector<std::string> grid_words() {
  std::vector<std::string> words;
  for (const Grid& grid : kGrids) words.emplace_back(grid.name);
  return words;
}

Json new_record(const SystemInfo& system, const std::string& grid, const std::string& dtype) {
  const std::optional<DeviceInfo> gpu = usable_device(system);
  return {{"device", gpu ? Json(gpu->name) : Json()},
          {"driver", system.driver_version.empty() ? Json() : Json(system.driver_version)},
          {"nvrtc", system.nvrtc_version.empty() ? Json() : Json(system.nvrtc_version)},
          {"version", system.version},
          {"date", date_now()},
          {"grid", grid},
          {"dtype", dtype},
          {"rows", Json::array()}};
}

int run(const BenchOptions& options, const Session& session) {
  const auto grid =
      std::find_if(std::begin(kGrids), std::end(kGrids), [&](const Grid& each) { return options.grid == each.name; });
  const std::string dtype = options.dtype.value_or(grid->dtype);
  std::optional<OutputFile> file;
  if (!options.json.empty()) file.emplace("--json", options.json);
  const InterruptGuard interrupt;
  Engine engine(session.gpu_engine_options());
  if (options.e4m3 && options.grid != "decode")
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--e4m3: must be given with --grid decode only, was with {}", options.grid));
  const BenchContext context{options, session, interrupt, engine, engine.system(), parse_dtype(dtype)};
  Json record = new_record(context.system, options.grid, dtype);
  grid->run(context, record);
  if (file) {
    file->write(to_text(record) + "\n");
    file->publish();
  }
  return kSuccess;
}

std::int64_t elements_of(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// The first numbers of the tensor, which repeat behind them: to draw billions would take minutes.
HostTensor draw(DType dtype, const Dims& shape, std::uint64_t seed) {
  constexpr std::int64_t kMost = std::int64_t{1} << 25;
  return HostTensor::random_normal(dtype, {std::min(elements_of(shape), kMost)}, seed);
}

DeviceTensor on_device(const HostTensor& drawn, const Dims& shape, int device) {
  HostTensor all(drawn.dtype(), shape);
  const std::size_t bytes = all.element_count() * size_of(all.dtype());
  const std::size_t drawn_bytes = drawn.element_count() * size_of(drawn.dtype());
  for (std::size_t done = 0; done < bytes; done += drawn_bytes)
    std::memcpy(static_cast<char*>(all.data()) + done, drawn.data(), std::min(drawn_bytes, bytes - done));
  return all.to_device(nullptr, device);
}

}  // namespace

BenchTensors make_tensors(DType dtype, const Dims& q_shape, const Dims& k_shape, int device) {
  const ProgressLine progress("making random inputs");
  const auto drawn = [&](const Dims& shape, std::uint64_t seed) {
    return std::async(std::launch::async, [=] { return draw(dtype, shape, seed); });
  };
  auto q = drawn(q_shape, 1), k = drawn(k_shape, 2), v = drawn(k_shape, 3);
  return {on_device(q.get(), q_shape, device), on_device(k.get(), k_shape, device), on_device(v.get(), k_shape, device),
          DeviceTensor::allocate(dtype, q_shape, nullptr, device)};
}

BenchTensors make_tensors(DType dtype, const Dims& shape, int device) {
  return make_tensors(dtype, shape, shape, device);
}

MeasureOptions measure_options(const BenchContext& context) {
  constexpr int kRepeats = 30, kQuickRepeats = 5;
  MeasureOptions measure;
  measure.repeats = context.options.repeats.value_or(context.options.quick ? kQuickRepeats : kRepeats);
  return measure;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void add_bench(CLI::App& app, Command& command) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = add_subcommand(app, command, "bench", "Measure on this machine", kEpilog);
  require(add_choice(bench, "--grid", options->grid, grid_words(), "What to measure, see below"));
  add_choice(bench, "--dtype", options->dtype, {"bf16", "f16"}, "Precision [default: bf16; ablation: f16]");
  add_option(bench, "--arch", options->architecture, kArchType,
             "Grids jit and accuracy without a GPU: the target [default: sm_90a]");
  add_option(bench, "--json", options->json, "FILE", "Also write the record to this file");
  add_integer(bench, "--repeats", options->repeats, "N", {1, 100000},
              "Timed launches of a cell [default: 30], or cold compiles and loads of a kernel [default: 3]");
  CLI::Option* const e4m3 = add_flag(bench, "--e4m3", options->e4m3, "Grid decode: keys and values are of e4m3");
  need(add_flag(bench, "--token-scales", options->token_scales, "With a scale for each key of each head"), e4m3);
  add_flag(bench, "--quick", options->quick, "Fewer cells and repeats, for a first look");
  run_when_chosen(bench, command, options, run);
}

}  // namespace flashjit::cli
