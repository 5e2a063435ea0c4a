// SPDX-License-Identifier: Apache-2.0
// Rows made e4m3 or e5m2 in the emulator, against the reference and against what the header says.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "generator/source.h"
#include "runtime/kernels/nvrtc.h"
#include "tests/nvrtc/kernel_jobs.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/quantize_case.h"
#include "tests/support/sample.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using generator::QuantizePass;
using tests::QuantizeCase;
using tests::QuantizedMemory;

Engine engine_with(const char* architecture, const std::string& templates = {}, std::uint64_t seed = 0) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = architecture;
  options.emulation.seed = seed;
  options.template_directory = templates;
  options.log = nullptr;
  return Engine(options);
}

QuantizedMemory found(Engine& engine, const QuantizeCase& c) {
  QuantizedMemory memory{c.poisoned_out(), c.poisoned_scale()};
  std::vector<Tensor> here;
  for (const HostTensor& input : c.inputs) here.push_back(input.view());
  const Tensor x = c.view(here[QuantizeCase::x].data, here[QuantizeCase::x].dtype);
  engine.quantize(x, c.view(memory.out.data(), c.stored), memory.scale.view(), c.options_of(here));
  return memory;
}

// One head, as a matrix: what its rows are worth once they are e4m3.
std::vector<double> worth(Engine& engine, const HostTensor& x, const QuantizeOptions& opts) {
  HostTensor out(DType::e4m3, x.shape()), scale(DType::f32, quantize_scale_shape(x.view(), opts));
  engine.quantize(x.view(), out.view(), scale.view(), opts);
  std::vector<double> values = out.to_doubles();
  for (double& value : values) value *= load_element(scale.data(), DType::f32, 0);
  return values;
}

double product(const std::vector<double>& a, const std::vector<double>& b, std::int64_t row, std::int64_t head_dim) {
  double sum = 0;
  for (std::int64_t i = 0; i < head_dim; ++i)
    sum += a[static_cast<std::size_t>(row * head_dim + i)] * b[static_cast<std::size_t>(row * head_dim + i)];
  return sum;
}

}  // namespace

TEST_CASE("random rows become e4m3 or e5m2 as in the reference, and nothing beside them is written") {
  Engine engine = engine_with("sm_90a");
  tests::Sampler sampler;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    if (!sampler.takes_next()) continue;
    const QuantizeCase c(seed);
    CAPTURE(seed);
    CAPTURE(c.describe());
    CHECK(tests::difference(c, found(engine, c), tests::expected_of(c)) == "");
  }
}

TEST_CASE("what is written is the same under every schedule and on every target that has e4m3") {
  for (const std::uint64_t seed : {1, 6, 9}) {
    const QuantizeCase c(seed);
    CAPTURE(c.describe());
    Engine first = engine_with("sm_89"), second = engine_with("sm_120a", {}, 77);
    const QuantizedMemory a = found(first, c), b = found(second, c);
    CHECK(a.out.to_doubles().size() == b.out.to_doubles().size());
    CHECK(std::memcmp(a.out.data(), b.out.data(), a.out.element_count()) == 0);
    CHECK(std::memcmp(a.scale.data(), b.scale.data(), a.scale.element_count() * sizeof(float)) == 0);
  }
}

TEST_CASE("kernels that make rows e4m3 compile for every target that has it, without spills") {
  const EngineOptions options = EngineOptions::from_environment();
  runtime::Nvrtc nvrtc({options.nvrtc_path, options.nvrtc_directories});
  using generator::Rotary;
  tests::Sampler sampler;
  const auto check = [&](const char* target, std::int64_t head_dim, QuantizePass pass, Rotary rotary) {
    if (!sampler.takes_next()) return;
    const generator::Source source =
        generator::render_quantize({DType::bf16, head_dim, true, rotary, DType::f32}, pass, find_architecture(target))
            .source;
    const runtime::CompiledImage image = nvrtc.compile(source.text(), source.name, target);
    CAPTURE(source.name);
    const int known = tests::known_spill(nvrtc.version(), source.name);
    CHECK(image.spill_bytes <= known);
    CHECK((image.stack_bytes == 0 || known != 0));
  };
  for (const char* target : {"sm_89", "sm_90a", "sm_100a", "sm_120a"})
    for (const std::int64_t head_dim : {48, 64, 128, 192, 256}) {
      for (const Rotary rotary : {Rotary::none, Rotary::halves, Rotary::neighbours})
        for (const QuantizePass pass : {QuantizePass::by_rows, QuantizePass::by_many_rows, QuantizePass::by_given})
          check(target, head_dim, pass, rotary);
      for (const QuantizePass pass : {QuantizePass::maxima, QuantizePass::by_maxima})
        if (head_dim % 128 == 0) check(target, head_dim, pass, Rotary::none);
    }
}

TEST_CASE("scales are the largest magnitudes over 448, and rows come back within a sixteenth") {
  Engine engine = engine_with("sm_89");
  constexpr std::int64_t kRows = 70, kHeads = 2, kDim = 64, kBlock = 32;
  const HostTensor x = HostTensor::random_normal(DType::bf16, {1, kRows, kHeads, kDim}, 4, 0.2);
  const std::vector<double> values = x.to_doubles();
  QuantizeOptions opts;
  opts.scale_of = ScaleOf::block, opts.block_size = kBlock;
  HostTensor out(DType::e4m3, x.shape()), scale(DType::f32, {1, kHeads, 3});
  REQUIRE(quantize_scale_shape(x.view(), opts) == scale.shape());
  engine.quantize(x.view(), out.view(), scale.view(), opts);
  double largest[kHeads][3] = {};
  const auto place = [](std::int64_t i) { return std::pair{i / kDim % kHeads, i / kDim / kHeads / kBlock}; };
  for (std::int64_t i = 0; i < kRows * kHeads * kDim; ++i) {
    const auto [head, block] = place(i);
    largest[head][block] = std::max(largest[head][block], std::abs(values[static_cast<std::size_t>(i)]));
  }
  for (std::int64_t i = 0; i < kRows * kHeads * kDim; ++i) {
    const auto [head, block] = place(i);
    const double is = load_element(scale.data(), DType::f32, head * 3 + block),
                 value = values[static_cast<std::size_t>(i)];
    REQUIRE(is == doctest::Approx(largest[head][block] / 448).epsilon(1e-6));
    REQUIRE(std::abs(load_element(out.data(), DType::e4m3, i) * is - value) <= std::abs(value) / 16 + is / 512);
  }
}

TEST_CASE("a rotation leaves products as they were, and spreads an outlier") {
  Engine engine = engine_with("sm_90a");
  for (const std::int64_t head_dim : {16, 48, 64, 96, 128, 256}) {
    CAPTURE(head_dim);
    constexpr std::int64_t kRows = 20;
    const HostTensor q = HostTensor::random_normal(DType::f16, {1, kRows, 1, head_dim}, 1);
    HostTensor k = HostTensor::random_normal(DType::f16, {1, kRows, 1, head_dim}, 2);
    QuantizeOptions rotated;
    rotated.rotation_seed = 0x123456789abcdef;
    const std::vector<double> q_was = q.to_doubles(), k_was = k.to_doubles(), q_is = worth(engine, q, rotated),
                              k_is = worth(engine, k, rotated);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const double lengths = std::sqrt(product(q_was, q_was, row, head_dim) * product(k_was, k_was, row, head_dim));
      CHECK(std::abs(product(q_is, k_is, row, head_dim) - product(q_was, k_was, row, head_dim)) < lengths / 16);
    }
    store_element(k.data(), DType::f16, 5, 300);
    const double part = static_cast<double>(head_dim & -head_dim);
    const auto scale_with = [&](const QuantizeOptions& opts) {
      return load_element(engine.quantize(k.view(), opts).scale.data(), DType::f32, 0);
    };
    CHECK(scale_with(rotated) < 2 / std::sqrt(part) * scale_with({}));
  }
}

TEST_CASE("signs are drawn by the words of the header: as many of each, and others for another seed") {
  int minus = 0, changed = 0;
  for (std::int64_t i = 0; i < 256; ++i) {
    CHECK(std::abs(rotation_sign(7, i)) == 1);
    minus += rotation_sign(7, i) < 0;
    changed += rotation_sign(7, i) != rotation_sign(8, i);
  }
  CHECK(minus > 96);
  CHECK(minus < 160);
  CHECK(changed > 96);
  // A row with a single 1 becomes a column of the matrix, by its sign.
  Engine engine = engine_with("sm_89");
  constexpr std::int64_t kDim = 64;
  HostTensor x(DType::f16, {1, kDim, 1, kDim});
  for (std::int64_t i = 0; i < kDim; ++i) store_element(x.data(), DType::f16, i * kDim + i, 1);
  QuantizeOptions opts;
  opts.rotation_seed = 7;
  const std::vector<double> rotated = worth(engine, x, opts);
  for (std::int64_t row = 0; row < kDim; ++row)
    for (std::int64_t i = 0; i < kDim; ++i) {
      const double sign = __builtin_parityll(static_cast<unsigned long long>(row & i)) != 0 ? -1 : 1;
      CHECK(rotated[static_cast<std::size_t>(row * kDim + i)] == doctest::Approx(sign * rotation_sign(7, row) / 8));
    }
}

TEST_CASE("zeros have the scale 1, and numbers that are none or too large are as the header says") {
  Engine engine = engine_with("sm_90a");
  constexpr std::int64_t kHeads = 5, kDim = 16;
  const double firsts[kHeads] = {0, 1e-39, 3e38, INFINITY, std::nan("")};
  HostTensor x(DType::bf16, {1, 1, kHeads, kDim}), out(DType::e4m3, x.shape()), scale(DType::f32, {1, kHeads});
  for (std::int64_t head = 0; head < kHeads; ++head)
    for (std::int64_t i = 0; i < kDim; ++i)
      store_element(x.data(), DType::bf16, head * kDim + i, i == 0 ? firsts[head] : head < 2 ? firsts[head] / 2 : 1);
  engine.quantize(x.view(), out.view(), scale.view());
  const std::vector<double> stored = out.to_doubles(), scales = scale.to_doubles();
  const auto first = [&](std::int64_t head) { return stored[static_cast<std::size_t>(head * kDim)]; };
  CHECK(scales[0] == 1);
  CHECK(first(0) == 0);
  CHECK(scales[1] == std::numeric_limits<float>::min());
  CHECK(first(1) * scales[1] == doctest::Approx(1e-39).epsilon(0.1));
  CHECK(first(2) == 448);
  CHECK(scales[3] == doctest::Approx(std::numeric_limits<float>::max() / 448));
  CHECK(first(3) == 448);
  CHECK(stored[3 * kDim + 1] == 0);
  CHECK(std::isnan(first(4)));
  CHECK(scales[4] == doctest::Approx(1.0 / 448));
  CHECK(stored[4 * kDim + 1] == 448);
}

TEST_CASE("a maximum is found wherever it is, of more thread blocks than there are shares") {
  Engine engine = engine_with("sm_90a");
  constexpr std::int64_t kHeads = 2100, kDim = 16;
  for (const std::int64_t at : {0, 1024, 2099}) {
    HostTensor x(DType::f16, {1, 1, kHeads, kDim}), out(DType::e4m3, x.shape()), scale(DType::f32, {1});
    store_element(x.data(), DType::f16, at * kDim + 3, -224);
    QuantizeOptions opts;
    opts.scale_of = ScaleOf::tensor;
    engine.quantize(x.view(), out.view(), scale.view(), opts);
    CHECK(scale.to_doubles()[0] == 0.5);
    CHECK(load_element(out.data(), DType::e4m3, at * kDim + 3) == -448);
  }
}

TEST_CASE("what turns becomes the bits that append writes, before it is rotated") {
  Engine engine = engine_with("sm_90a");
  const HostTensor x = HostTensor::random_normal(DType::bf16, {1, 37, 2, 96}, 3),
                   tables = HostTensor::random_normal(DType::f32, {40, 40}, 5);
  const double rows = 37;
  const HostTensor used = HostTensor::from_doubles(DType::i32, {1}, &rows, 1);
  for (const bool interleaved : {false, true}) {
    HostTensor turned(DType::bf16, x.shape()), v = turned, v_cache = turned;
    AppendOptions append;
    append.seqused_kv = used.view(), append.rotary_cos = append.rotary_sin = tables.view();
    append.rotary_interleaved = interleaved;
    engine.append(x.view(), v.view(), turned.view(), v_cache.view(), append);
    QuantizeOptions opts;
    opts.rotation_seed = 3;
    HostTensor of_turned(DType::e4m3, x.shape()), at_once = of_turned, scale(DType::f32, {1, 2}), other = scale;
    engine.quantize(turned.view(), of_turned.view(), scale.view(), opts);
    opts.rotary_cos = opts.rotary_sin = tables.view(), opts.rotary_interleaved = interleaved;
    engine.quantize(x.view(), at_once.view(), other.view(), opts);
    CHECK(of_turned.to_doubles() == at_once.to_doubles());
    CHECK(scale.to_doubles() == other.to_doubles());
  }
}

TEST_CASE("new tensors are as the caller's, and given scales are read") {
  Engine engine = engine_with("sm_90a");
  const HostTensor x = HostTensor::random_normal(DType::f16, {50, 3, 64}, 9);
  QuantizeOptions opts;
  opts.scale_of = ScaleOf::block, opts.block_size = 16, opts.rotation_seed = 1;
  const Quantized made = engine.quantize(x.view(), opts);
  CHECK(made.out.shape() == x.shape());
  CHECK(made.scale.shape() == Dims{3, 4});
  HostTensor out(DType::e4m3, x.shape()), scale = HostTensor::from_device(made.scale);
  opts.scale_is_given = true;
  engine.quantize(x.view(), out.view(), scale.view(), opts);
  CHECK(out.to_doubles() == HostTensor::from_device(made.out).to_doubles());
  CHECK_THROWS_WITH_AS(engine.quantize(x.view(), opts), "scale_is_given: must be false where scales are made, was true",
                       Error);
  opts = {};
  const HostTensor none(DType::f16, {0, 3, 64});
  CHECK(engine.quantize(none.view(), opts).scale.shape() == Dims{3});
}

TEST_CASE("bad arguments are refused by name") {
  Engine engine = engine_with("sm_90a"), old = engine_with("sm_80");
  const HostTensor x(DType::f16, {2, 5, 3, 32}), odd(DType::f16, {2, 5, 3, 24}), of_f32(DType::f32, {2, 5, 3, 32}),
      wide(DType::f16, {1, 1, 1, 272}), packed(DType::f16, {5, 3, 32}), table(DType::f32, {9, 16}),
      short_table(DType::f32, {9, 12}), few(DType::i32, {9});
  HostTensor out(DType::e4m3, x.shape()), other(DType::e4m3, {2, 5, 3, 16}), of_f16(DType::f16, x.shape()),
      scale(DType::f32, {2, 3}), of_block(DType::f32, {2, 3, 2}), of_i32(DType::i32, {2, 3});
  const auto refusal = [&](Engine& by, const Tensor& from, const Tensor& to, const Tensor& scales,
                           const QuantizeOptions& opts) {
    try {
      by.quantize(from, to, scales, opts);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const auto of_rows = [&](const HostTensor& from, const HostTensor& to) {
    return refusal(engine, from.view(), to.view(), scale.view(), {});
  };
  CHECK(of_rows(x, out) == "none");
  CHECK(refusal(old, x.view(), out.view(), scale.view(), {}) ==
        "out: dtype e4m3 takes compute capability 8.9 or more, was on sm_80");
  CHECK(of_rows(of_f32, out) == "x: dtype must be f16 or bf16, was f32");
  CHECK(of_rows(odd, out) == "x: head_dim must be a multiple of 16 from 16 to 256, was 24");
  CHECK(of_rows(wide, out) == "x: head_dim must be a multiple of 16 from 16 to 256, was 272");
  CHECK(of_rows(x, of_f16) == "out: dtype must be e4m3 or e5m2, was f16");
  CHECK(of_rows(x, other) == "out: head_dim must be 32 like that of x, was 16");
  CHECK(of_rows(table, out) == "x: dtype must be f16 or bf16, was f32");
  const auto with = [&](const Tensor& scales, auto change) {
    QuantizeOptions opts;
    change(opts);
    return refusal(engine, x.view(), out.view(), scales, opts);
  };
  const auto nothing = [](QuantizeOptions&) {};
  CHECK(with(of_i32.view(), nothing) == "scale: dtype must be f32, was i32");
  CHECK(with(of_block.view(), nothing) == "scale: shape must be [2, 3], was [2, 3, 2]");
  CHECK(with(Tensor(out.data(), DType::f32, {2, 3}), nothing).find("out: must not overlap scale") == 0);
  CHECK(with(scale.view(), [](auto& opts) { opts.scale_of = ScaleOf::tensor; }) ==
        "scale: shape must be [1], was [2, 3]");
  CHECK(with(scale.view(), [](auto& opts) { opts.block_size = 16; }) ==
        "block_size: must be 0 without scales of blocks, was 16");
  CHECK(with(of_block.view(), [](auto& opts) { opts.scale_of = ScaleOf::block; }) ==
        "block_size: must be at least 1 for scales of blocks, was 0");
  CHECK(with(scale.view(), [&](auto& opts) { opts.rotary_cos = table.view(); }) ==
        "rotary_sin: must be given beside rotary_cos, was not");
  CHECK(with(scale.view(), [&](auto& opts) { opts.rotary_cos = opts.rotary_sin = short_table.view(); }) ==
        "rotary_cos: rotary_dim / 2 must be a multiple of 8 from 8 to 16, half of head_dim, was 12");
  CHECK(with(scale.view(), [&](auto& opts) {
          opts.rotary_cos = opts.rotary_sin = table.view(), opts.positions = few.view();
        }) == "positions: must have 10 elements, one for each token of x, had 9");
  CHECK(with(scale.view(), [&](auto& opts) { opts.positions = few.view(); }) ==
        "positions: must not be given without rotary_cos");
  QuantizeOptions turned;
  turned.rotary_cos = turned.rotary_sin = table.view();
  CHECK(refusal(engine, packed.view(), out.view(), scale.view(), turned) ==
        "positions: must be given beside rotary_cos for x of three dimensions, was not");
}

TEST_CASE("given scales that are not positive are found by an engine that looks, and by the reference") {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_90a", options.check_pages = true, options.log = nullptr;
  Engine engine(options);
  const HostTensor x(DType::f16, {1, 5, 3, 32});
  HostTensor out(DType::e4m3, x.shape());
  QuantizeOptions opts;
  opts.scale_is_given = true;
  for (const double bad : {0.0, -1.0, static_cast<double>(INFINITY), std::nan(""), 1e-40}) {
    const double values[] = {1, bad, 2};
    const HostTensor scale = HostTensor::from_doubles(DType::f32, {1, 3}, values, 3);
    const std::string message = "scale: must be positive, finite and normal, was ";
    CHECK_THROWS_WITH_AS(engine.quantize(x.view(), out.view(), scale.view(), opts), doctest::Contains(message.c_str()),
                         Error);
    CHECK_THROWS_WITH_AS(reference::quantize(x.view(), out.view(), scale.view(), opts),
                         doctest::Contains(message.c_str()), Error);
  }
}

TEST_CASE("planted faults of quantisation are found") {
  struct Fault {
    const char *original, *replacement;
  };
  const Fault faults[] = {
      {"constexpr int kBits = kPart >= 32 ? 15 : 7;", "constexpr int kBits = 15;"},
      {"__popc(from & to & kBits)", "__popc(from & kBits)"},
      {"args.signs[group] >> (chunk(group) % kQuadLanes * kChunkElements)", "args.signs[group]"},
      {"if (row >= rows.end()) continue;", ""},
      {"found = fmaxf(found, fabsf(x));", "found = fmaxf(found, x);"},
      {"largest == 0.0f ? 1.0f : ", ""},
      {"if (thread % kWarpSize == 0) of_warps[warp] = largest;\n    ptx::bar_sync();",
       "if (thread % kWarpSize == 0) of_warps[warp] = largest;"},
      {"round ^= 1;", ""},
      {"ptx::cp_async_wait_all();", ""},
      {"if (row >= args.rows_of_block) row = warp * kQuantizeTileRows, block += step;",
       "row = warp * kQuantizeTileRows, block += step;"},
      {"if (owner != owner_of_scale)", "if (owner_of_scale < 0)"},
      {"const bool is_second = own >= args.turned;", "const bool is_second = false;"},
      {"if (own >= 2 * args.turned) return pairs;", ""},
  };
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.replacement));
    CAPTURE(std::string(fault.original));
    const tests::TemporaryDirectory directory;
    tests::plant("kernels/quantize.cuh", fault.original, fault.replacement, directory / "templates");
    Engine engine = engine_with("sm_90a", (directory / "templates").string());
    bool all_right = true;
    for (std::uint64_t seed = 0; seed < 60 && all_right; ++seed) {
      const QuantizeCase c(seed);
      try {
        all_right = tests::difference(c, found(engine, c), tests::expected_of(c)).empty();
      } catch (const Error& error) {
        all_right = error.code() != ErrorCode::kernel_fault;
      }
    }
    CHECK_FALSE(all_right);
  }
}
