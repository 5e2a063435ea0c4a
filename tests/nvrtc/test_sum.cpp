// SPDX-License-Identifier: Apache-2.0
// Rows added up in the emulator, against the same in double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/error_code.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;

Engine engine_with(const std::string& templates = {}, std::uint64_t seed = 0) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_80";
  options.emulation.seed = seed;
  options.template_directory = templates;
  options.log = nullptr;
  return Engine(options);
}

std::vector<HostTensor> parts_of(DType dtype, const Dims& shape, int count) {
  std::vector<HostTensor> parts;
  for (int i = 0; i < count; ++i)
    parts.push_back(HostTensor::random_normal(dtype, shape, 3 + static_cast<std::uint64_t>(i)));
  return parts;
}

std::vector<Tensor> views_of(const std::vector<HostTensor>& parts) {
  std::vector<Tensor> views;
  for (const HostTensor& part : parts) views.push_back(part.view());
  return views;
}

std::vector<double> expected_of(const std::vector<HostTensor>& parts) {
  std::vector<double> sum(parts.front().element_count());
  for (const HostTensor& part : parts) {
    const std::vector<double> values = part.to_doubles();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

HostTensor poisoned(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

// By how much a result may miss: by roundings of f32 and one of its own dtype.
bool is_sum(const HostTensor& found, const std::vector<double>& expected) {
  const double rounding = found.dtype() == DType::f32 ? 0 : found.dtype() == DType::f16 ? 0x1p-11 : 0x1p-8;
  const std::vector<double> values = found.to_doubles();
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (!(std::abs(values[i] - expected[i]) <= 4e-6 + rounding * std::abs(expected[i]))) return false;
  return true;
}

void expect_sum(Engine& engine, DType part, DType whole, const Dims& shape, int count) {
  CAPTURE(to_string(part));
  CAPTURE(to_string(whole));
  CAPTURE(to_string(shape));
  CAPTURE(count);
  const std::vector<HostTensor> parts = parts_of(part, shape, count);
  HostTensor out = poisoned(whole, shape);
  engine.sum(views_of(parts), out.view());
  CHECK(is_sum(out, expected_of(parts)));
}

}  // namespace

TEST_CASE("parts of each dtype are added up to each, however many there are and however wide") {
  Engine engine = engine_with();
  for (const DType part : {DType::f16, DType::bf16, DType::f32})
    for (const DType whole : {DType::f16, DType::bf16, DType::f32}) expect_sum(engine, part, whole, {2, 5, 3, 64}, 3);
  for (const int count : {1, 2, 4, 5, 15, 16}) expect_sum(engine, DType::f32, DType::f32, {1, 7, 2, 40}, count);
  for (const std::int64_t head_dim : {8, 16, 24, 128, 136, 256, 520})
    expect_sum(engine, DType::f32, DType::bf16, {1, 11, 3, head_dim}, 2);
  CHECK(tests::kernels_of(engine) == 9);
}

TEST_CASE("one part is copied bit by bit, also what is no number and the sign of a zero") {
  Engine engine = engine_with();
  HostTensor part(DType::f32, {1, 2, 1, 8});
  const double values[] = {-0.0, 0.0, std::numeric_limits<double>::infinity(), -1e-44, 3.5, -2.25, 1e38, 7.0};
  for (int i = 0; i < 16; ++i) store_element(part.data(), DType::f32, i, values[i % 8]);
  HostTensor out = poisoned(DType::f32, part.shape());
  engine.sum({part.view()}, out.view());
  const auto* const from = static_cast<const std::uint32_t*>(part.data());
  const auto* const to = static_cast<const std::uint32_t*>(out.data());
  CHECK(std::vector<std::uint32_t>(from, from + 16) == std::vector<std::uint32_t>(to, to + 16));
}

TEST_CASE("the sum may lie in any part, and views may have any strides") {
  Engine engine = engine_with();
  const Dims shape{2, 6, 3, 72};
  for (std::size_t in_place = 0; in_place < 3; ++in_place) {
    const std::vector<HostTensor> parts = parts_of(DType::f32, shape, 3);
    const std::vector<double> expected = expected_of(parts);
    engine.sum(views_of(parts), parts[in_place].view());
    CHECK(is_sum(parts[in_place], expected));
  }
  // Every other row, heads first in memory.
  const std::vector<HostTensor> parts = parts_of(DType::bf16, {1, 6, 2, 16}, 2);
  std::vector<Tensor> views = views_of(parts);
  for (Tensor& view : views) {
    view.shape[1] = 3;
    view.strides[1] *= 2;
  }
  HostTensor memory = poisoned(DType::f32, {1, 2, 3, 16});
  engine.sum(views, Tensor(memory.data(), DType::f32, {1, 3, 2, 16}, {96, 16, 48, 1}));
  const std::vector<double> expected = expected_of(parts), found = memory.to_doubles();
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t head = 0; head < 2; ++head)
      for (std::size_t i = 0; i < 16; ++i)
        CHECK(found[(head * 3 + row) * 16 + i] == doctest::Approx(expected[(2 * row * 2 + head) * 16 + i]));
}

TEST_CASE("bad parts are refused by name, and nothing is written") {
  Engine engine = engine_with();
  const std::vector<HostTensor> parts = parts_of(DType::f16, {1, 4, 2, 32}, 2);
  const HostTensor other(DType::bf16, {1, 4, 2, 32}), longer(DType::f16, {1, 5, 2, 32});
  HostTensor out(DType::f16, {1, 4, 2, 32});
  const auto refusal = [&](const std::vector<Tensor>& given, const Tensor& into) {
    std::string message;
    CHECK(tests::code_of([&] { engine.sum(given, into); }, &message) == ErrorCode::invalid_argument);
    return message;
  };
  CHECK(refusal({}, out.view()) == "parts: must be from 1 to 16, were 0");
  CHECK(refusal(std::vector<Tensor>(17, parts[0].view()), out.view()) == "parts: must be from 1 to 16, were 17");
  CHECK(refusal({parts[0].view(), other.view()}, out.view()) ==
        "parts[1]: dtype must be f16 like that of parts[0], was bf16");
  CHECK(refusal({parts[0].view(), longer.view()}, out.view()) == "parts[1]: seqlen must be 4 like that of out, was 5");
  CHECK(refusal({parts[0].view()}, HostTensor(DType::i32, {1, 4, 2, 32}).view()) ==
        "out: dtype must be f16, bf16 or f32, was i32");
  Tensor shifted = parts[0].view(), cut = parts[0].view();
  shifted.shape[1] = cut.shape[1] = 3;
  shifted.data = static_cast<std::uint16_t*>(shifted.data) + 64;
  CHECK(refusal({cut}, shifted).find("out: must not overlap parts[0]") == 0);
  HostTensor none(DType::f16, {1, 0, 2, 32});
  engine.sum({none.view()}, none.view());
}

TEST_CASE("a kernel of sums is compiled for each target without spills") {
  Engine engine(tests::options_with_kept_kernels());
  for (const char* architecture : {"sm_80", "sm_90a", "sm_120a"}) {
    const KernelFacts made = engine.compile_sum(DType::f32, DType::bf16, architecture);
    CHECK(made.name == std::string("sum-f32-bf16.") + architecture);
    CHECK((made.registers > 0 && made.spill_bytes == 0 && made.cubin_bytes > 0));
  }
  CHECK_THROWS_WITH_AS(engine.compile_sum(DType::i32, DType::bf16, "sm_90a"), "part: must be f16, bf16 or f32, was i32",
                       Error);
}

TEST_CASE("a sum is the same under every schedule") {
  const std::vector<HostTensor> parts = parts_of(DType::f32, {1, 9, 2, 40}, 3);
  std::vector<double> first;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Engine engine = engine_with({}, seed);
    HostTensor out = poisoned(DType::f32, {1, 9, 2, 40});
    engine.sum(views_of(parts), out.view());
    if (first.empty()) first = out.to_doubles();
    CHECK(out.to_doubles() == first);
  }
}

TEST_CASE("row numbers of 64 bits find the rows that those of 32 find") {
  const tests::TemporaryDirectory directory;
  const auto templates = directory / "templates";
  tests::plant("kernels/sum.cuh", "args.rows >> 32 == 0", "false", templates);
  Engine engine = engine_with(templates.string()), plain = engine_with();
  const std::vector<HostTensor> parts = parts_of(DType::f32, {3, 5, 3, 40}, 3);
  HostTensor out = poisoned(DType::f32, {3, 5, 3, 40}), wanted = out;
  engine.sum(views_of(parts), out.view());
  plain.sum(views_of(parts), wanted.view());
  CHECK(out.to_doubles() == wanted.to_doubles());
}

TEST_CASE("planted faults of the sum are found") {
  struct Fault {
    const char *name, *original, *replacement;
  };
  const Fault faults[] = {
      {"the first part counts twice", "for (int i = 1; i < args.count; ++i)", "for (int i = 0; i < args.count; ++i)"},
      {"the last part is left out", "i < args.count", "i < args.count - 1"},
      {"wide rows end early", "chunk < args.chunks; chunk += lanes", "chunk < lanes; chunk += lanes"},
      {"rows that do not exist are added up", "if (row >= args.rows) return;", "if (row > args.rows) return;"},
      {"a part has the strides of the sum", "offset(part.strides)", "offset(args.out_strides)"},
      {"a head is told by its position", "head = static_cast<int>(row % heads)",
       "head = static_cast<int>(query % heads)"},
  };
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.name));
    const tests::TemporaryDirectory directory;
    const auto templates = directory / "templates";
    tests::plant("kernels/sum.cuh", fault.original, fault.replacement, templates);
    Engine engine = engine_with(templates.string());
    const std::vector<HostTensor> parts = parts_of(DType::f32, {2, 5, 3, 520}, 3);
    HostTensor memory = poisoned(DType::f32, {2, 5, 3, 528});
    const Tensor out(memory.data(), DType::f32, {2, 5, 3, 520}, packed_strides(memory.shape()));
    bool is_found = false;
    try {
      engine.sum(views_of(parts), out);
      const std::vector<double> expected = expected_of(parts), found = memory.to_doubles();
      for (std::size_t i = 0; i < expected.size(); ++i)
        is_found = is_found || !(std::abs(found[i / 520 * 528 + i % 520] - expected[i]) <= 4e-6);
    } catch (const Error& error) {
      is_found = error.code() == ErrorCode::kernel_fault;
    }
    CHECK(is_found);
  }
}
