// SPDX-License-Identifier: Apache-2.0
// The attention problems of tests/vectors, by real kernels in the emulator, against the rows that the same kernels gave
// on hardware. scripts/gpu-vectors makes those; tests/vectors/attention_cases.py has the problems.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "runtime/support/parallel.h"
#include "tests/support/instruction_forms.h"
#include "tests/support/kept_kernels.h"

namespace {

using namespace flashjit;
using vectors::Bytes;
using vectors::Json;

const std::filesystem::path kVectors = std::filesystem::path(FLASHJIT_SOURCE_DIR) / "tests" / "vectors";

// splitmix64, as forms/numbers.py has it.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  std::uint64_t state_;
};

// As elements() of attention_cases.py.
double next_element(Random& random) {
  const std::uint64_t bits = random.bits();
  int total = -126;
  for (const int shift : {0, 6, 12, 18}) total += static_cast<int>(bits >> shift & 63);
  return total * ((bits >> 24 & 63) == 0 ? 4 : 1) / 32.0;
}

HostTensor make_tensor(DType dtype, const Dims& shape, std::uint64_t seed) {
  HostTensor tensor(dtype, shape);
  Random random(seed);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), next_element(random));
  return tensor;
}

// --- Problems --------------------------------------------------------------------------------------------------------

struct Case {
  Case(const Json& json, std::uint64_t index)
      : name(json.at("name")), dtype(parse_dtype(json.at("dtype").get<std::string>())), row_step(json.at("row_step")) {
    const std::int64_t batch = json.at("batch"), head_dim = json.at("head_dim");
    const Dims of_q{batch, json.at("seqlen_q"), json.at("heads_q"), head_dim};
    const Dims of_kv{batch, json.at("seqlen_kv"), json.at("heads_kv"), head_dim};
    q = make_tensor(dtype, of_q, 1000 * index);
    k = make_tensor(dtype, of_kv, 1000 * index + 1);
    v = make_tensor(dtype, of_kv, 1000 * index + 2);
    options.causal = json.at("causal");
    options.variant = parse_variant(json.at("variant").get<std::string>());
  }

  std::string name;
  DType dtype;
  std::int64_t row_step;  // of the queries whose outputs are kept
  HostTensor q, k, v;
  AttentionOptions options;
};

Bytes kept_rows(const Case& c, const HostTensor& out) {
  const Dims& shape = out.shape();
  const std::size_t bytes = static_cast<std::size_t>(shape[2] * shape[3]) * size_of(c.dtype);
  const auto* row = static_cast<const std::uint8_t*>(out.data());
  Bytes kept;
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i, row += bytes)
    if (i % shape[1] % c.row_step == 0) kept.insert(kept.end(), row, row + bytes);
  return kept;
}

// --- Comparison ------------------------------------------------------------------------------------------------------

// Both round at the same places, to nearest, and differ in what is left open: the order of a tensor core's sums, with
// the bits that it drops there, and the last bits of ex2.approx. These are f32, far below the output's precision: they
// show only where a number that is rounded to 16 bits lies next to a tie. So outputs differ seldom; the output itself
// then by a unit in the last place, and a probability by one rounding, which weighs as much as the largest outputs do.
struct Tolerance {
  static constexpr int kUlps = 2;
  static constexpr double kRoundings = 1;  // of the largest output
  static constexpr double kShare = 0.01;   // of the outputs, that may differ at all
};

double value_at(const Bytes& bytes, DType dtype, std::size_t i) {
  return load_element(bytes.data(), dtype, static_cast<std::int64_t>(i));
}

// Empty, or what is wrong.
std::string difference(DType dtype, const Bytes& got, const Bytes& expected) {
  if (got.size() != expected.size()) return fmt::format("{} bytes, not {}", got.size(), expected.size());
  const vectors::Format format = vectors::format_of(dtype == DType::bf16 ? "bf16" : "f16");
  const std::size_t count = got.size() / size_of(dtype);
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(value_at(expected, dtype, i)));
  const double absolute = Tolerance::kRoundings * largest * std::ldexp(0.5, -format.fraction_bits);
  std::size_t different = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double a = value_at(got, dtype, i), b = value_at(expected, dtype, i);
    if (a == b) continue;
    ++different;
    const double ulp = b == 0 ? 0 : std::ldexp(1.0, std::ilogb(b) - format.fraction_bits);
    if (!(std::abs(a - b) <= Tolerance::kUlps * ulp + absolute))
      return fmt::format("element {} is {}, on hardware {}", i, a, b);
  }
  if (static_cast<double>(different) <= Tolerance::kShare * static_cast<double>(count)) return "";
  return fmt::format("{} of {} elements differ", different, count);
}

// --- Execution -------------------------------------------------------------------------------------------------------

// Empty, or what is wrong.
std::string problem_of(Engine& engine, const Case& c, const Bytes& expected) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    HostTensor out(c.dtype, c.q.shape());
    std::memset(out.data(), 0xff, out.element_count() * size_of(c.dtype));  // NaN
    EmulationOptions emulation;
    emulation.seed = seed;
    try {
      const emulator::Report report =
          engine.emulate(c.q.view(), c.k.view(), c.v.view(), out.view(), c.options, emulation);
      if (!report.clean()) return to_string(report);
    } catch (const Error& error) {
      return std::string(error.what()) + "\n" + error.log();
    }
    const std::string wrong = difference(c.dtype, kept_rows(c, out), expected);
    if (!wrong.empty()) return fmt::format("seed {}: {}", seed, wrong);
  }
  return "";
}

Engine make_engine() {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_90a";  // for both families, as on the H200
  return Engine(options);
}

}  // namespace

TEST_CASE("kernels of both families give in the emulator what they gave on hardware") {
  const vectors::Results hardware = vectors::read_results(kVectors / "results" / "nvidia-h200");
  std::vector<Case> cases;
  for (const Json& json : vectors::read_json(kVectors / "data" / "attention.json"))
    cases.emplace_back(json, cases.size());
  REQUIRE(!cases.empty());
  Engine engine = make_engine();
  std::vector<std::string> problems(cases.size());
  runtime::parallel_for(cases.size(), [&](std::size_t i) {
    problems[i] = problem_of(engine, cases[i], hardware.outputs.at("attention " + cases[i].name));
  });
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO(cases[i].name);
    CHECK(problems[i] == "");
  }
}

TEST_CASE("an output that is not hardware's is found") {
  const auto bytes_of = [](std::initializer_list<double> values) {
    const HostTensor tensor = HostTensor::from_doubles(DType::bf16, {static_cast<std::int64_t>(values.size())},
                                                       values.begin(), values.size());
    const auto* const begin = static_cast<const std::uint8_t*>(tensor.data());
    return Bytes(begin, begin + 2 * values.size());
  };
  const Bytes ones(2 * 200, 0x3f);  // all alike
  Bytes got = ones;
  CHECK(difference(DType::bf16, got, ones) == "");
  got[0] ^= 1;
  got[2] ^= 1;
  CHECK(difference(DType::bf16, got, ones) == "");
  got[4] ^= 1;
  CHECK(difference(DType::bf16, got, ones) == "3 of 200 elements differ");
  CHECK(difference(DType::bf16, bytes_of({1, 2.04}), bytes_of({1, 2})) == "element 1 is 2.046875, on hardware 2");
  CHECK(difference(DType::bf16, bytes_of({1, std::nan("")}), bytes_of({1, 2})) == "element 1 is nan, on hardware 2");
  CHECK(difference(DType::bf16, bytes_of({1}), bytes_of({1, 2})) == "2 bytes, not 4");
}
