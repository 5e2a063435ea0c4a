// SPDX-License-Identifier: Apache-2.0
// New keys and values written into caches of 8 bits, in the emulator, against the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/flashjit.h"
#include "generator/source.h"
#include "runtime/kernels/nvrtc.h"
#include "tests/support/append_case.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::AppendCase;

Engine engine_with(const char* architecture, const std::string& templates = {}) {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = architecture;
  options.template_directory = templates;
  options.log = nullptr;
  return Engine(options);
}

enum class ScalesOf { none, all, heads, tokens };

// Caches of 8 bits for a case, their scales and its queries, before anything is written.
struct Caches {
  HostTensor k, v, k_rotary, k_scale, v_scale, q;

  Caches(const AppendCase& c, ScalesOf of, DType dtype)
      : k(tests::poisoned(dtype, shape(c, c.head_dim))),
        v(tests::poisoned(dtype, shape(c, c.head_dim_v))),
        k_rotary(tests::poisoned(c.dtype, shape(c, c.rotary_dim))),
        k_scale(scales(c, of, 1)),
        v_scale(scales(c, of, 2)),
        q(c.in_place ? c.inputs[AppendCase::q] : tests::poisoned(c.dtype, c.q_shape)) {}

  // Rows have room up to a multiple of 16 bytes.
  static Dims shape(const AppendCase& c, std::int64_t dim) {
    const std::int64_t room = (dim + 15) / 16 * 16;
    return c.heads_first ? Dims{c.pages, c.heads, c.page_size, room} : Dims{c.pages, c.page_size, c.heads, room};
  }
  static Tensor view(const AppendCase& c, HostTensor& cache, std::int64_t dim) {
    const Dims strides = packed_strides(cache.shape());
    Tensor of(cache.data(), cache.dtype(), {c.pages, c.page_size, c.heads, dim}, strides);
    if (c.heads_first) std::swap(of.strides[1], of.strides[2]);
    return of;
  }
  static HostTensor scales(const AppendCase& c, ScalesOf of, int seed) {
    if (of == ScalesOf::tokens) return tests::poisoned(DType::f32, {c.pages, c.page_size, c.heads});
    HostTensor values(DType::f32, {of == ScalesOf::heads ? c.heads : 1});
    for (std::int64_t i = 0; i < values.shape()[0]; ++i)
      store_element(values.data(), DType::f32, i, 0.003 * static_cast<double>(seed + i));
    return values;
  }

  template <class Append>
  void fill(const AppendCase& c, ScalesOf of, const Append& append) {
    std::vector<Tensor> given;
    for (const HostTensor& input : c.inputs) given.push_back(input.view());
    AppendOptions opts = c.options(given, q.view());
    if (of != ScalesOf::none)
      opts.k_scale = k_scale.view(), opts.v_scale = (c.has_one_cache ? k_scale : v_scale).view();
    if (c.rotary_dim > 0) opts.k_rotary_cache = view(c, k_rotary, c.rotary_dim);
    append(given[AppendCase::k], c.values(given), view(c, k, c.head_dim),
           view(c, c.has_one_cache ? k : v, c.head_dim_v), opts);
  }
};

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return std::memcmp(a.data(), b.data(), a.element_count() * size_of(a.dtype())) == 0;
}
// What turns is off by roundings in f32, so a number beside a tie may become the next one.
bool near_bytes(const HostTensor& a, const HostTensor& b) {
  const auto *one = static_cast<const std::uint8_t*>(a.data()), *other = static_cast<const std::uint8_t*>(b.data());
  std::size_t apart = 0;
  for (std::size_t i = 0; i < a.element_count(); ++i) {
    if (std::abs(one[i] - other[i]) > 1) return false;
    apart += one[i] != other[i];
  }
  return apart <= 1 + a.element_count() / 200;
}
bool near_scales(const HostTensor& a, const HostTensor& b) {
  const std::vector<double> one = a.to_doubles(), other = b.to_doubles();
  for (std::size_t i = 0; i < one.size(); ++i)
    if (std::isnan(one[i]) != std::isnan(other[i]) || std::abs(one[i] - other[i]) > 1e-6 * std::abs(other[i]))
      return false;
  return true;
}

bool agree(const AppendCase& c, const Caches& is, const Caches& should) {
  return (c.rotary ? near_bytes(is.k, should.k) : same_bytes(is.k, should.k)) && same_bytes(is.v, should.v) &&
         near_scales(is.k_scale, should.k_scale) && same_bytes(is.v_scale, should.v_scale) &&
         tests::difference(is.k_rotary, should.k_rotary, true).elements == 0 &&
         tests::difference(is.q, should.q, true).elements == 0;
}

bool is_right(Engine& engine, const AppendCase& c, ScalesOf of, DType dtype = DType::e4m3) {
  Caches is(c, of, dtype), should(c, of, dtype);
  should.fill(c, of, [](const auto&... call) { reference::append(call...); });
  is.fill(c, of, [&](const auto&... call) { engine.append(call...); });
  return agree(c, is, should);
}

}  // namespace

TEST_CASE("random tokens are rounded into caches of 8 bits where they belong, and nothing else is written") {
  Engine engine = engine_with("sm_89");
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const AppendCase c(seed);
    const DType dtype = seed % 3 == 1 ? DType::e5m2 : DType::e4m3;
    CAPTURE(seed);
    CAPTURE(c.describe());
    CAPTURE(to_string(dtype));
    for (const ScalesOf of : {ScalesOf::none, ScalesOf::all, ScalesOf::heads, ScalesOf::tokens})
      if (seed % 4 == static_cast<std::uint64_t>(of) || of == ScalesOf::tokens) CHECK(is_right(engine, c, of, dtype));
  }
}

TEST_CASE("kernels that write 8 bits compile for every target that has them, without spills") {
  const EngineOptions options = EngineOptions::from_environment();
  runtime::Nvrtc nvrtc({options.nvrtc_path, options.nvrtc_directories});
  for (const Architecture& architecture : architectures()) {
    if (!generator::converts_to_8_bits(architecture)) continue;
    for (const generator::Rotary rotary : {generator::Rotary::none, generator::Rotary::halves}) {
      const DType cache = rotary == generator::Rotary::none ? DType::e4m3 : DType::e5m2;
      const generator::Source source =
          generator::render_append({DType::bf16, rotary, DType::f32, cache}, architecture).source;
      const runtime::CompiledImage image = nvrtc.compile(source.text(), source.name, architecture.name);
      CAPTURE(source.name);
      CHECK(image.spill_bytes == 0);
      CHECK(image.stack_bytes == 0);
    }
  }
}

TEST_CASE("rows of zeros, of tiny numbers, of the largest ones, of infinity and of NaN") {
  Engine engine = engine_with("sm_90a");
  constexpr std::int64_t kRows = 5, kDim = 16;
  const double kNan = std::nan("");
  const double firsts[kRows] = {0, 1e-39, 3e38, INFINITY, kNan};
  HostTensor k(DType::bf16, {1, kRows, 1, kDim});
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t i = 0; i < kDim; ++i)
      store_element(k.data(), DType::bf16, row * kDim + i,
                    i == 0               ? firsts[row]
                    : firsts[row] < 1e30 ? firsts[row] / 2
                                         : 1);
  HostTensor k_cache(DType::e4m3, k.shape()), v_cache(DType::e4m3, k.shape());
  HostTensor k_scale(DType::f32, {1, kRows, 1}), v_scale(DType::f32, {1, kRows, 1});
  const double length = kRows;
  const HostTensor used = HostTensor::from_doubles(DType::i32, {1}, &length, 1);
  AppendOptions opts;
  opts.seqused_kv = used.view(), opts.k_scale = k_scale.view(), opts.v_scale = v_scale.view();
  engine.append(k.view(), k.view(), k_cache.view(), v_cache.view(), opts);
  const std::vector<double> stored = k_cache.to_doubles(), scales = k_scale.to_doubles();
  const auto first = [&](std::int64_t row) { return stored[static_cast<std::size_t>(row * kDim)]; };
  CHECK(first(0) == 0);
  CHECK(scales[0] > 0);
  CHECK(first(1) * scales[1] == doctest::Approx(1e-39).epsilon(0.1));
  CHECK(first(2) == 448);
  CHECK(scales[2] == doctest::Approx(3e38 / 448).epsilon(0.01));
  CHECK(first(3) == 448);
  CHECK(scales[3] == doctest::Approx(1.0 / 448));
  CHECK(stored[3 * kDim + 1] == 448);
  CHECK(std::isnan(first(4)));
  CHECK(stored[4 * kDim + 1] == 448);
}

TEST_CASE("what does not fit a cache of e4m3 is refused by name") {
  const HostTensor k(DType::f16, {2, 3, 2, 32}), slots = tests::whole_numbers(DType::i32, {0, 1, 2, 3, 4, 5});
  HostTensor k_cache(DType::e4m3, {5, 4, 2, 32}), v_cache = k_cache, other(DType::f16, {5, 4, 2, 32}),
                                                  narrow(DType::e4m3, {5, 4, 2, 24});
  HostTensor one(DType::f32, {1}), of_heads(DType::f32, {2}), odd(DType::f32, {3}), of_tokens(DType::f32, {5, 4, 2}),
      of_tokens_too = of_tokens, few(DType::f32, {5, 3, 2}), of_f16(DType::f16, {1});
  const auto refusal = [&](const char* architecture, const Tensor& into_k, const Tensor& into_v, const HostTensor* of_k,
                           const HostTensor* of_v) {
    Engine engine = engine_with(architecture);
    AppendOptions opts;
    opts.slots = slots.view();
    if (of_k) opts.k_scale = of_k->view();
    if (of_v) opts.v_scale = of_v->view();
    try {
      engine.append(k.view(), k.view(), into_k, into_v, opts);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const auto scales = [&](const HostTensor* of_k, const HostTensor* of_v) {
    return refusal("sm_90a", k_cache.view(), v_cache.view(), of_k, of_v);
  };
  CHECK(scales(nullptr, nullptr) == "none");
  CHECK(scales(&one, &of_heads) == "none");
  CHECK(scales(&of_tokens, &of_tokens_too) == "none");
  CHECK(refusal("sm_86", k_cache.view(), v_cache.view(), nullptr, nullptr) ==
        "k_cache: dtype must be f16 like that of k on sm_86, which has no instruction for e4m3, was e4m3");
  CHECK(refusal("sm_90a", k_cache.view(), other.view(), nullptr, nullptr) ==
        "v_cache: dtype must be e4m3 like that of k_cache, was f16");
  CHECK(refusal("sm_90a", other.view(), HostTensor(other).view(), &one, &one) ==
        "k_scale: must not be given unless k_cache is of e4m3 or e5m2, which was of f16");
  Tensor apart = narrow.view();
  apart.shape[3] = 32;
  CHECK(refusal("sm_90a", apart, v_cache.view(), nullptr, nullptr) ==
        "k_cache: the stride of num_heads must be a multiple of 16 elements, was 24");
  CHECK(scales(&one, nullptr) == "v_scale: must be given beside k_scale, was not");
  CHECK(scales(nullptr, &one) == "k_scale: must be given beside v_scale, was not");
  CHECK(scales(&of_f16, &one) == "k_scale: dtype must be f32, was f16");
  CHECK(scales(&one, &odd) == "v_scale: must have 1 element, or one for each of the 2 heads of k_cache, had 3");
  CHECK(scales(&of_tokens, &few) == "v_scale: seqlen must be 4 like that of k_cache, was 3");
  CHECK(scales(&of_tokens, &one) ==
        "v_scale: must have one number for each token like k_scale, or neither, had the shapes [1] and [5, 4, 2]");
  CHECK(scales(&of_tokens, &of_tokens).find("v_scale: must not overlap k_scale") == 0);
}

TEST_CASE("planted faults of what is written in e4m3 are found") {
  struct Fault {
    const char *original, *replacement;
    ScalesOf of;
    const char* file = "kernels/append_scaled.cuh";
  };
  const Fault faults[] = {
      {"__fdiv_rn(largest, Stored::kLargest)", "largest", ScalesOf::tokens},
      {"distance = lanes.count / 2", "distance = lanes.count / 4", ScalesOf::tokens},
      {"if (lanes.own == 0) ptx::st_global(of.first + at, scale);", "", ScalesOf::tokens},
      {"fmaxf(largest, fabsf(value))", "fmaxf(largest, value)", ScalesOf::tokens},
      {"ptx::ld_global_float(of.first + at)", "ptx::ld_global_float(of.first)", ScalesOf::heads},
      {"chunk * kChunkBytes, four(0), four(4)", "chunk * kChunkBytes, four(4), four(0)", ScalesOf::all},
      {"scale_of_row(scales[which],", "scale_of_row(scales[0],", ScalesOf::all},
      {"which < kAppendedCaches", "rows.to_cache != 0", ScalesOf::all, "kernels/append.cuh"},
  };
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.replacement));
    const tests::TemporaryDirectory directory;
    tests::plant(fault.file, fault.original, fault.replacement, directory / "templates");
    Engine engine = engine_with("sm_90a", (directory / "templates").string());
    bool all_right = true;
    try {
      for (std::uint64_t seed = 0; seed < 12 && all_right; ++seed)
        all_right = is_right(engine, AppendCase(seed), fault.of);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kernel_fault);
      all_right = false;
    }
    CHECK_FALSE(all_right);
  }
}
