// SPDX-License-Identifier: Apache-2.0
// Partial results joined in the emulator, against the same in double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "tests/support/error_code.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Engine engine_with(const std::string& templates = {}, std::uint64_t seed = 0) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_80";
  options.emulation.seed = seed;
  options.template_directory = templates;
  options.log = nullptr;
  return Engine(options);
}

// Results over so many parts of the keys, of which some rows saw no key in some parts or in any: then their outputs are
// NaN, which nobody may look at.
struct Parts {
  Parts(DType dtype, const Dims& shape, int count) {
    const Dims lse_shape{shape[0], shape[2], shape[1]};
    for (int i = 0; i < count; ++i) {
      outs.push_back(HostTensor::random_normal(dtype, shape, 10 + static_cast<std::uint64_t>(i)));
      HostTensor lse = HostTensor::random_normal(DType::f32, lse_shape, 90 + static_cast<std::uint64_t>(i));
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(lse.element_count()); ++row) {
        const double value = 4 * load_element(lse.data(), DType::f32, row) + (row % 5 == 0 ? 120 : 0);
        const bool blind = row % 7 == 3 || (row + i) % 3 == 1;
        store_element(lse.data(), DType::f32, row, blind ? -kInfinity : value);
        if (blind) fill_row(outs.back(), row, kNaN);
      }
      lses.push_back(std::move(lse));
    }
  }

  std::vector<Partial> views() {
    std::vector<Partial> parts;
    for (std::size_t i = 0; i < outs.size(); ++i) parts.push_back({outs[i].view(), lses[i].view()});
    return parts;
  }
  std::vector<reference::Result> results() const {
    std::vector<reference::Result> all;
    for (std::size_t i = 0; i < outs.size(); ++i)
      all.push_back({outs[i].shape(), outs[i].to_doubles(), lses[i].to_doubles()});
    return all;
  }

  std::vector<HostTensor> outs, lses;

 private:
  // row: of the LSE.
  static void fill_row(HostTensor& out, std::int64_t row, double value) {
    const Dims& shape = out.shape();
    const std::int64_t position = row % shape[1], head = row / shape[1] % shape[2], entry = row / shape[1] / shape[2];
    const std::int64_t first = ((entry * shape[1] + position) * shape[2] + head) * shape[3];
    for (std::int64_t i = 0; i < shape[3]; ++i) store_element(out.data(), out.dtype(), first + i, value);
  }
};

HostTensor filled(DType dtype, const Dims& shape, double value) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), value);
  return tensor;
}

// The largest distance, relative where a number is above 1; NaN where one is.
double distance(const HostTensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = found.to_doubles();
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart =
        values[i] == expected[i] ? 0 : std::abs(values[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
    if (!(apart <= worst)) worst = apart;
    if (std::isnan(apart)) return kNaN;
  }
  return worst;
}

double rounding(DType dtype) { return dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7; }

void expect_merged(Engine& engine, DType part, DType whole, const Dims& shape, int count) {
  CAPTURE(to_string(part));
  CAPTURE(to_string(whole));
  CAPTURE(to_string(shape));
  CAPTURE(count);
  Parts parts(part, shape, count);
  HostTensor out = filled(whole, shape, kNaN), lse = filled(DType::f32, {shape[0], shape[2], shape[1]}, kNaN);
  MergeOptions opts;
  opts.lse = lse.view();
  engine.merge(parts.views(), out.view(), opts);
  const reference::Result expected = reference::merge(parts.results());
  CHECK(distance(out, expected.out) <= rounding(whole) * (count > 16 ? count / 15 : 1));
  CHECK(distance(lse, expected.lse) <= 1e-6);
}

}  // namespace

TEST_CASE("parts of each dtype are joined to each, however many there are and however wide") {
  Engine engine = engine_with();
  for (const DType part : {DType::f16, DType::bf16, DType::f32})
    for (const DType whole : {DType::f16, DType::bf16, DType::f32})
      expect_merged(engine, part, whole, {2, 5, 3, 64}, 3);
  CHECK(tests::kernels_of(engine) == 9);
  for (const int count : {1, 2, 4, 5, 16, 17, 31, 40})
    expect_merged(engine, DType::f32, DType::f32, {1, 7, 2, 40}, count);
  for (const std::int64_t head_dim : {8, 16, 24, 128, 136, 192, 256, 264, 520})
    expect_merged(engine, DType::f32, DType::bf16, {1, 11, 3, head_dim}, 2);
  CHECK(tests::kernels_of(engine) == 9);
}

TEST_CASE("attention over parts of the keys is joined to attention over all of them") {
  Engine engine = engine_with();
  const HostTensor q = HostTensor::random_normal(DType::bf16, {2, 9, 4, 64}, 1),
                   k = HostTensor::random_normal(DType::bf16, {2, 150, 2, 64}, 2),
                   v = HostTensor::random_normal(DType::bf16, {2, 150, 2, 64}, 3);
  const auto keys = [](Tensor all, std::int64_t first, std::int64_t end) {
    all.data = static_cast<std::uint16_t*>(all.data) + first * all.strides[1];
    all.shape[1] = end - first;
    return all;
  };
  std::vector<DeviceTensor> outs;
  std::vector<HostTensor> lses;
  lses.reserve(3);
  std::vector<Partial> parts;
  for (const auto& [first, end] : {std::pair{0, 40}, {40, 41}, {41, 150}}) {
    AttentionOptions opts;
    opts.lse = lses.emplace_back(HostTensor(DType::f32, {2, 4, 9})).view();
    outs.push_back(engine.attention(q.view(), keys(k.view(), first, end), keys(v.view(), first, end), opts));
    parts.push_back({outs.back().view(), lses.back().view()});
  }
  HostTensor lse(DType::f32, {2, 4, 9});
  MergeOptions opts;
  opts.lse = lse.view();
  const DeviceTensor out = engine.merge(parts, opts);
  CHECK(out.dtype() == DType::bf16);
  const reference::Result exact = reference::attention(q.view(), k.view(), v.view()),
                          low = reference::attention_in_low_precision(q.view(), k.view(), v.view());
  CHECK(reference::compare(HostTensor::from_device(out), exact, low).passed);
  CHECK(reference::compare_lse(lse, exact, low).passed);
}

TEST_CASE("a part may lie where the result goes, and views may have any strides") {
  Engine engine = engine_with();
  const Dims shape{2, 6, 3, 72};
  for (int in_place = 0; in_place < 3; ++in_place) {
    Parts parts(DType::f32, shape, 3);
    const reference::Result expected = reference::merge(parts.results());
    MergeOptions opts;
    opts.lse = parts.lses[static_cast<std::size_t>(in_place)].view();
    engine.merge(parts.views(), parts.outs[static_cast<std::size_t>(in_place)].view(), opts);
    CHECK(distance(parts.outs[static_cast<std::size_t>(in_place)], expected.out) <= 2e-6);
    CHECK(distance(parts.lses[static_cast<std::size_t>(in_place)], expected.lse) <= 1e-6);
  }
  // Heads first in memory, and one part for all batch entries.
  Parts parts(DType::f16, {1, 6, 3, 72}, 2);
  std::vector<Partial> views = parts.views();
  for (Partial& part : views) {
    part.out.shape[0] = part.lse.shape[0] = 2;
    part.out.strides[0] = part.lse.strides[0] = 0;
  }
  HostTensor memory = filled(DType::f16, {2, 3, 6, 72}, kNaN), lse_memory = filled(DType::f32, {2, 6, 3}, kNaN);
  const Tensor out(memory.data(), DType::f16, {2, 6, 3, 72}, {3 * 6 * 72, 72, 6 * 72, 1});
  engine.merge(views, out);
  const std::vector<double> expected = reference::merge(parts.results()).out, found = memory.to_doubles();
  double worst = 0;
  for (int entry = 0; entry < 2; ++entry)
    for (int position = 0; position < 6; ++position)
      for (int head = 0; head < 3; ++head)
        for (int i = 0; i < 72; ++i) {
          const double apart = std::abs(found[static_cast<std::size_t>(((entry * 3 + head) * 6 + position) * 72 + i)] -
                                        expected[static_cast<std::size_t>((position * 3 + head) * 72 + i)]);
          if (!(apart <= worst)) worst = apart;
        }
  CHECK(worst <= 4e-3);
}

TEST_CASE("NaN and infinity in an LSE reach their own row and no other") {
  Engine engine = engine_with();
  for (const double special : {kNaN, kInfinity}) {
    Parts parts(DType::f32, {1, 4, 2, 32}, 2);
    store_element(parts.lses[1].data(), DType::f32, 1, special);  // row 1 of head 0
    HostTensor out = filled(DType::f32, {1, 4, 2, 32}, 0);
    engine.merge(parts.views(), out.view());
    const std::vector<double> found = out.to_doubles();
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::isnan(found[i]) == (i / 32 == 2));
  }
}

TEST_CASE("a kernel of merge is compiled by an engine, for each pair of dtypes that a call may have") {
  Engine engine(tests::options_with_kept_kernels());
  const KernelFacts made = engine.compile_merge(DType::f32, DType::bf16, "sm_90a");
  CHECK(made.name == "merge-f32-bf16.sm_90a");
  CHECK((made.registers > 0 && made.spill_bytes == 0 && made.cubin_bytes > 0));
  CHECK_THROWS_WITH_AS(engine.compile_merge(DType::i32, DType::bf16, "sm_90a"),
                       "part: must be f16, bf16 or f32, was i32", Error);
  CHECK_THROWS_WITH_AS(engine.compile_merge(DType::f16, DType::e4m3, "sm_90a"),
                       "out: must be f16, bf16 or f32, was e4m3", Error);
}

TEST_CASE("bad parts are refused by name, and the next call is right") {
  Engine engine = engine_with();
  Parts parts(DType::f16, {1, 4, 2, 32}, 2), others(DType::bf16, {1, 4, 2, 32}, 1),
      longer(DType::f16, {1, 5, 2, 32}, 1);
  HostTensor out(DType::f16, {1, 4, 2, 32}), lse(DType::f32, {1, 2, 4});
  const auto refusal = [&](std::vector<Partial> given, const Tensor& into, const MergeOptions& opts = {}) {
    try {
      engine.merge(given, into, opts);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string("none");
  };
  const auto with = [&](const Partial& part) {
    std::vector<Partial> given = parts.views();
    given.push_back(part);
    return given;
  };
  CHECK(refusal({}, out.view()) == "parts: must have at least 1, had 0");
  CHECK(refusal(with({others.outs[0].view(), lse.view()}), out.view()) ==
        "parts[2].out: dtype must be f16 like that of parts[0].out, was bf16");
  CHECK(refusal(with({longer.outs[0].view(), lse.view()}), out.view()) ==
        "parts[2].out: seqlen must be 4 like that of out, was 5");
  CHECK(refusal(with({parts.outs[0].view(), longer.lses[0].view()}), out.view()) ==
        "parts[2].lse: seqlen must be 4 like that of out, was 5");
  CHECK(refusal(with({parts.outs[0].view(), parts.outs[0].view()}), out.view()) ==
        "parts[2].lse: dtype must be f32, was f16");
  CHECK(refusal(parts.views(), HostTensor(DType::i32, {1, 4, 2, 32}).view()) ==
        "out: dtype must be f16, bf16 or f32, was i32");
  Tensor shifted = parts.outs[0].view();
  shifted.shape[1] = 3;
  shifted.data = static_cast<std::uint16_t*>(shifted.data) + 64;
  std::vector<Partial> cut{{parts.outs[0].view(), parts.lses[0].view()}};
  cut[0].out.shape[1] = 3, cut[0].lse.shape[2] = 3;
  CHECK(refusal(cut, shifted).find("out: must not overlap parts[0].out") == 0);
  std::vector<Partial> many(17, parts.views()[0]);
  CHECK(refusal(many, out.view()) == "lse: must be given with more than 16 parts, which are joined in turns, was not");
  expect_merged(engine, DType::f16, DType::f16, {1, 4, 2, 32}, 2);
}

TEST_CASE("a bad part beyond the first turn is refused before anything is written") {
  Engine engine = engine_with();
  Parts parts(DType::f16, {1, 4, 2, 32}, 20), longer(DType::f16, {1, 5, 2, 32}, 1);
  HostTensor out = filled(DType::f16, {1, 4, 2, 32}, 7), lse = filled(DType::f32, {1, 2, 4}, 7);
  MergeOptions opts;
  opts.lse = lse.view();
  const auto refusal = [&](const std::vector<Partial>& given, const Tensor& into) {
    std::string why = "none";
    try {
      engine.merge(given, into, opts);
    } catch (const Error& error) {
      why = error.what();
    }
    CHECK(load_element(out.data(), DType::f16, 0) == 7);
    CHECK(load_element(lse.data(), DType::f32, 0) == 7);
    return why;
  };
  const auto with_18th = [&](const Partial& part) {
    std::vector<Partial> given = parts.views();
    given[18] = part;
    return given;
  };
  CHECK(refusal(with_18th({longer.outs[0].view(), longer.lses[0].view()}), out.view()) ==
        "parts[18].out: seqlen must be 4 like that of out, was 5");
  CHECK(refusal(with_18th({out.view(), parts.lses[18].view()}), out.view()) ==
        "parts[18].out: must be among the first 16 parts to be joined in place, was out itself");
  CHECK(refusal(with_18th({parts.outs[18].view(), lse.view()}), out.view()) ==
        "parts[18].lse: must be among the first 16 parts to be joined in place, was lse itself");
  CHECK(refusal(parts.views(), HostTensor(DType::f32, {1, 4, 2, 32}).view()) ==
        "out: dtype must be f16 like that of parts[0].out with more than 16 parts, was f32");
  expect_merged(engine, DType::f16, DType::f16, {1, 4, 2, 32}, 20);
}

TEST_CASE("a result is the same under every schedule") {
  Parts parts(DType::f32, {1, 9, 2, 40}, 3);
  std::vector<double> first;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Engine engine = engine_with({}, seed);
    HostTensor out = filled(DType::f32, {1, 9, 2, 40}, kNaN);
    engine.merge(parts.views(), out.view());
    const std::vector<double> found = out.to_doubles();
    if (first.empty()) first = found;
    CHECK(found == first);
  }
}

TEST_CASE("row numbers of 64 bits find the rows that those of 32 find") {
  const tests::TemporaryDirectory directory;
  const auto templates = directory / "templates";
  tests::plant("kernels/merge.cuh", "args.rows >> 32 == 0", "false", templates);
  Engine engine = engine_with(templates.string());
  expect_merged(engine, DType::f16, DType::f16, {2, 5, 3, 40}, 3);
  expect_merged(engine, DType::bf16, DType::f32, {3, 4, 2, 64}, 6);
}

TEST_CASE("planted faults of the merge are found") {
  struct Fault {
    const char *name, *original, *replacement;
  };
  const Fault faults[] = {
      {"shares are relative to nothing", "(lse - shift) * kLog2E", "lse * kLog2E"},
      {"shares of base e", "(lse - shift) * kLog2E", "(lse - shift)"},
      {"what a blind part left is looked at", "if (share != 0.0f)", "if (true)"},
      {"a row without keys divides by 0", "sum.total == 0.0f ? 0.0f : __frcp_rn(sum.total)", "__frcp_rn(sum.total)"},
      {"a row without keys has an infinite shift", "largest == -infinity() ? 0.0f : largest", "largest"},
      {"the shift is the first part's", "fmaxf(largest, lse(i))", "i == 0 ? lse(i) : largest"},
      {"the LSE lacks the shift", "__fmaf_rn(ptx::lg2(total), kLn2, shift)", "ptx::lg2(total) * kLn2"},
      {"the LSE is written before shares of many parts are taken of it",
       "      if (args.count > kFewParts) sum = sum_of(args.count, lse);\n",
       "      if (args.count > kFewParts) sum = sum_of(args.count, lse);\n"
       "      if (lane == 0) ptx::st_global(args.lse + place.in(args.lse_strides), sum.log());\n"},
      {"the LSE is written before shares of few parts are taken of it", "          sum = join_few(place, chunk);\n",
       "          sum = join_few(place, chunk);\n"
       "      if (lane == 0) ptx::st_global(args.lse + place.in(args.lse_strides), sum.log());\n"},
      {"a fifth part is lost", "args.count > kFewParts", "args.count > 2 * kFewParts"},
      {"wide rows end early", "for (int chunk = lane; chunk < args.chunks; chunk += lanes)",
       "for (int chunk = lane; chunk < lanes; chunk += lanes)"},
      {"rows that do not exist are joined", "    if (row < args.rows) {\n", "    if (row <= args.rows) {\n"},
      {"positions and batch entries change places", "static_cast<int>(query / rows), static_cast<int>(query % rows)",
       "static_cast<int>(query % rows), static_cast<int>(query / rows)"},
  };
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.name));
    const tests::TemporaryDirectory directory;
    const auto templates = directory / "templates";
    tests::plant("kernels/merge.cuh", fault.original, fault.replacement, templates);
    Engine engine = engine_with(templates.string());
    bool right = true;
    try {
      for (const auto& [head_dim, count] : {std::pair{40, 3}, {264, 3}, {264, 6}}) {
        Parts parts(DType::f32, {1, 9, 3, head_dim}, count);
        const reference::Result expected = reference::merge(parts.results());
        MergeOptions opts;
        opts.lse = parts.lses[0].view();
        HostTensor out = filled(DType::f32, {1, 9, 3, head_dim}, kNaN);
        engine.merge(parts.views(), out.view(), opts);
        right = right && distance(out, expected.out) <= 2e-6 && distance(parts.lses[0], expected.lse) <= 1e-6;
      }
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kernel_fault);
      right = false;
    }
    CHECK_FALSE(right);
  }
}
