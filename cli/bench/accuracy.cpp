// SPDX-License-Identifier: Apache-2.0
// What 8 bits cost: table 3 of the FlashAttention-3 paper (Shah et al. 2024, section 4.3).
#include <flashjit/quantize.h>
#include <flashjit/reference.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/io/device.h"
#include "cli/io/for_option.h"
#include "cli/io/progress.h"
#include "cli/io/streams.h"
#include "cli/io/table.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kQueries = 1024, kHeadDim = 128, kBlock = 128;
constexpr std::uint64_t kSeeds = 8;

struct Kind {
  DType dtype;  // of q, k and v
  const char* scales;
  ScaleOf scale_of;
  bool rotates;
};
constexpr Kind kKinds[] = {
    {DType::f16, "-", ScaleOf::tensor, false},       {DType::bf16, "-", ScaleOf::tensor, false},
    {DType::e4m3, "tensor", ScaleOf::tensor, false}, {DType::e4m3, "tensor", ScaleOf::tensor, true},
    {DType::e4m3, "block", ScaleOf::block, false},   {DType::e4m3, "block", ScaleOf::block, true}};

// Normal (0, 1), and of one in a thousand the sum with one of normal (0, 100): as f16, which all kinds are made of.
HostTensor draw(std::int64_t rows, std::uint64_t seed) {
  constexpr double kRate = 0.001, kDeviation = 10;
  const Dims shape{1, rows, 1, kHeadDim};
  std::vector<double> values = HostTensor::random_normal(DType::f32, shape, seed).to_doubles();
  const std::vector<double> outliers = HostTensor::random_normal(DType::f32, shape, seed + 1000).to_doubles();
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (static_cast<double>(random() >> 11) * 0x1p-53 < kRate) values[i] += kDeviation * outliers[i];
  return HostTensor::from_doubles(DType::f16, shape, values.data(), values.size());
}

struct Inputs {
  HostTensor q, k, v;
  reference::Result exact;

  Inputs(std::int64_t keys, std::uint64_t seed)
      : q(draw(kQueries, 10 * seed + 1)),
        k(draw(keys, 10 * seed + 2)),
        v(draw(keys, 10 * seed + 3)),
        exact(reference::attention(q.view(), k.view(), v.view())) {}
};

// In f16 where q is of e4m3.
HostTensor attend(Engine& engine, const Inputs& inputs, const Kind& kind, int device) {
  const auto on_device = [&](const HostTensor& rows) { return rows.to_device(nullptr, device); };
  if (kind.dtype != DType::e4m3) {
    const auto of = [&](const HostTensor& rows) { return on_device(rows.converted_to(kind.dtype)); };
    return HostTensor::from_device(engine.attention(of(inputs.q), of(inputs.k), of(inputs.v)));
  }
  const auto quantized = [&](const HostTensor& rows, bool rotates) {
    QuantizeOptions options;
    options.scale_of = kind.scale_of;
    if (kind.scale_of == ScaleOf::block) options.block_size = kBlock;
    if (rotates) options.rotation_seed = 1;
    return engine.quantize(on_device(rows), options);
  };
  const Quantized q = quantized(inputs.q, kind.rotates), k = quantized(inputs.k, kind.rotates),
                  v = quantized(inputs.v, false);
  AttentionOptions options;
  options.q_scale = q.scale.view(), options.k_scale = k.scale.view(), options.v_scale = v.scale.view();
  options.out_dtype = DType::f16;
  return HostTensor::from_device(engine.attention(q.out, k.out, v.out, options));
}

double mean_square_error(const HostTensor& out, const reference::Result& exact) {
  const std::vector<double> values = out.to_doubles();
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += (values[i] - exact.out[i]) * (values[i] - exact.out[i]);
  return sum / static_cast<double>(values.size());
}

// Of each kind, the mean over seeds.
std::vector<double> mean_square_errors(const BenchContext& context, Engine& engine, int device, std::int64_t keys,
                                       std::uint64_t seeds, ProgressLine& progress) {
  std::vector<double> errors(std::size(kKinds));
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    progress.show(fmt::format("{} keys, seed {}", keys, seed));
    const Inputs inputs(keys, seed);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      context.interrupt.check();
      errors[i] +=
          mean_square_error(attend(engine, inputs, kKinds[i], device), inputs.exact) / static_cast<double>(seeds);
    }
    progress.advance();
  }
  return errors;
}

// That of the GPU, or else one that emulates it.
Engine& engine_of(const BenchContext& context, std::optional<Engine>& emulating) {
  if (usable_device(context.system)) return context.engine;
  EngineOptions options = context.session.engine_options();
  choose_device({"emulate", context.options.architecture}, options);
  return emulating.emplace(options);
}

}  // namespace

void bench_accuracy(const BenchContext& context, Json& record) {
  std::optional<Engine> emulating;
  Engine& engine = engine_of(context, emulating);
  const DeviceInfo device = *usable_device(engine.system());
  // That there are such kernels, before any work.
  for_option("--arch", [&] {
    return engine.default_variants({.dtype = DType::f16, .e4m3 = true, .e4m3_queries = true}, device.architecture);
  });
  const std::uint64_t seeds = context.options.quick ? 1 : kSeeds;
  const std::vector<std::int64_t> lengths =
      context.options.quick ? std::vector<std::int64_t>{1024} : std::vector<std::int64_t>{1024, 8448};
  Table table({"<q, k and v", "<scales", "<rotated", "keys", "RMSE"});
  ProgressLine progress("comparing", static_cast<int>(seeds * lengths.size()));
  for (const std::int64_t keys : lengths) {
    const std::vector<double> errors = mean_square_errors(context, engine, device.ordinal, keys, seeds, progress);
    for (std::size_t i = 0; i < std::size(kKinds); ++i) {
      const Kind& kind = kKinds[i];
      const double rmse = std::sqrt(errors[i]);
      record["rows"].push_back({{"dtype", to_string(kind.dtype)},
                                {"scales", kind.scales},
                                {"rotated", kind.rotates},
                                {"keys", keys},
                                {"rmse", rmse}});
      table.add_row({to_string(kind.dtype), kind.scales, kind.rotates ? "yes" : "no", std::to_string(keys),
                     fmt::format("{:.2e}", rmse)});
    }
  }
  record["device"] = device.name, record["dtype"] = nullptr, record["seeds"] = seeds;
  print_out("{}, head dimension {}, {} queries, root of the mean square error over {} seeds, exact sums\n{}",
            device.name, kHeadDim, kQueries, seeds, table.text());
}

}  // namespace flashjit::cli
