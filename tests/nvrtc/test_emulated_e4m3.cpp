// SPDX-License-Identifier: Apache-2.0
// Keys and values of e4m3 without a GPU: real kernels in the emulator, against the reference.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/case_scales.h"
#include "cli/verify/cases.h"
#include "flashjit/flashjit.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;

Engine& engine() {
  static Engine of_hopper = [] {
    EngineOptions options = tests::options_with_kept_kernels();
    options.emulate = "sm_90a";
    return Engine(options);
  }();
  return of_hopper;
}

// Keys and values in e4m3, and their scales.
struct Call {
  HostTensor q, k, v;
  HostTensor k_scale, v_scale;
  AttentionOptions options;

  Call(DType dtype, const Dims& q_shape, const Dims& k_shape)
      : q(HostTensor::random_normal(dtype, q_shape, 1)),
        k(HostTensor::random_normal(DType::e4m3, k_shape, 2)),
        v(HostTensor::random_normal(DType::e4m3, k_shape, 3)) {}

  void set_scales(HostTensor of_k, HostTensor of_v) {
    k_scale = std::move(of_k), v_scale = std::move(of_v);
    options.k_scale = k_scale.view(), options.v_scale = v_scale.view();
  }
  void check() const {
    const reference::Result exact = reference::attention(q.view(), k.view(), v.view(), options),
                            low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), options);
    const HostTensor out = HostTensor::from_device(engine().attention(q.view(), k.view(), v.view(), options));
    const reference::Comparison compared = reference::compare(out, exact, low);
    CHECK_MESSAGE(compared.passed, compared.max_error, " must be at most ", compared.bound);
  }
};

HostTensor powers_of_two(const Dims& shape, int (*exponent)(std::int64_t index)) {
  HostTensor scales(DType::f32, shape);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(scales.element_count()); ++i)
    store_element(scales.data(), DType::f32, i, std::ldexp(1, exponent(i)));
  return scales;
}

}  // namespace

TEST_CASE("keys and values of e4m3 at head dims of every kind") {
  struct Dims2 {
    int head_dim, head_dim_v;
  };
  const std::vector<Dims2> all = {{8, 8}, {16, 128}, {40, 72}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
  for (const auto& [head_dim, head_dim_v] : tests::sample(all))
    for (const DType dtype : {DType::f16, DType::bf16})
      for (const bool token_scales : {false, true}) {
        const bool of_this_dim = (dtype == DType::f16) == (head_dim % 16 == 0);  // by turns, but for the common one
        if (head_dim != 128 && of_this_dim != token_scales) continue;
        const Problem problem{.dtype = dtype,
                              .head_dim = head_dim,
                              .head_dim_v = head_dim_v,
                              .causal = true,
                              .e4m3 = true,
                              .token_scales = token_scales};
        CAPTURE(to_string(problem));
        for (const cli::CaseShape& shape : cli::shapes_for(problem, cli::emulated_shapes()))
          CHECK(cli::VerifyCase(problem, shape, kHostMemory).problem_with(engine(), {}) == "");
      }
}

TEST_CASE("tiles of 16 rows lie where swizzles begin, however short the query's rows are") {
  const Variant variant = parse_variant("hopper-q16-kv64-s2-qs1-whole-serial-ppoff-rare-fixed-splitkv");
  for (const int head_dim : {8, 16}) {
    const Problem problem{.dtype = DType::f16, .head_dim = head_dim, .head_dim_v = 128};
    const cli::VerifyCase c(problem, {2, 19, 150, 4, 1}, kHostMemory);
    CHECK(c.problem_with(engine(), variant) == "");
  }
}

TEST_CASE("scales of values may be anything that f32 holds, and differ from token to token") {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const auto exponent :
         {+[](std::int64_t i) { return static_cast<int>(i / 2 % 130) - 80; },    // rising with the key
          +[](std::int64_t i) { return 40 - static_cast<int>(i / 2 % 130); },    // falling
          +[](std::int64_t i) { return static_cast<int>(i * 7 % 23) - 40; },     // far below what f16 holds
          +[](std::int64_t i) { return static_cast<int>(i * 5 % 17) + 20; }}) {  // and far above
      Call call(dtype, {1, 3, 4, 64}, {1, 300, 2, 64});
      call.set_scales(powers_of_two({1, 300, 2}, [](std::int64_t i) { return static_cast<int>(i % 5) - 3; }),
                      powers_of_two({1, 300, 2}, exponent));
      // Beyond the largest f16 no output is a number.
      for (std::int64_t i = 0; dtype == DType::f16 && i < 600; ++i) {
        const double scale = load_element(call.v_scale.data(), DType::f32, i);
        store_element(call.v_scale.data(), DType::f32, i, std::min(scale, 64.0));
      }
      call.check();
    }
}

TEST_CASE("queries of bf16 beyond what f16 holds") {
  Call call(DType::bf16, {1, 5, 2, 64}, {1, 100, 1, 64});
  for (std::size_t i = 0; i < call.q.element_count(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    store_element(call.q.data(), DType::bf16, at, 1e9 * load_element(call.q.data(), DType::bf16, at));
  }
  call.options.softmax_scale = 1e-10f;
  call.check();
}

TEST_CASE("all numbers of e4m3 come out as they are, NaN among them") {
  // One key for each: its value is all of the output.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    HostTensor v(DType::e4m3, {256, 1, 1, 16});
    for (std::int64_t i = 0; i < 256 * 16; ++i)
      static_cast<std::uint8_t*>(v.data())[i] = static_cast<std::uint8_t>(i / 16);
    const HostTensor q = HostTensor::random_normal(dtype, {256, 1, 1, 16}, 1),
                     k = HostTensor::random_normal(DType::e4m3, {256, 1, 1, 16}, 2);
    const HostTensor out = HostTensor::from_device(engine().attention(q.view(), k.view(), v.view()));
    const std::vector<double> is = out.to_doubles(), should = v.to_doubles();
    for (std::size_t i = 0; i < is.size(); ++i)
      CHECK((is[i] == should[i] || (std::isnan(is[i]) && std::isnan(should[i]))));
  }
}

TEST_CASE("scales of a head, of all heads and of none, with any strides") {
  Call call(DType::bf16, {2, 4, 6, 64}, {2, 130, 3, 64});
  call.check();
  const auto of_heads = +[](std::int64_t i) { return static_cast<int>(i) - 1; };
  call.set_scales(powers_of_two({3}, of_heads), powers_of_two({1}, of_heads));
  call.check();
  call.set_scales(powers_of_two({1}, of_heads), powers_of_two({3}, of_heads));
  call.check();
  // Heads before tokens, and every other number.
  const auto any = +[](std::int64_t i) { return static_cast<int>(i * 3 % 7) - 3; };
  call.set_scales(powers_of_two({2, 3, 260}, any), powers_of_two({2, 3, 260}, any));
  for (auto* scale : {&call.options.k_scale, &call.options.v_scale})
    *scale = Tensor((*scale)->data, DType::f32, {2, 130, 3}, {780, 2, 260});
  call.check();
}

TEST_CASE("what is written by append is read by attention") {
  for (const bool of_tokens : {false, true}) {
    constexpr std::int64_t kTokens = 70, kHeads = 2, kDim = 64, kPageSize = 16, kPages = 6;
    const HostTensor k = HostTensor::random_normal(DType::bf16, {1, kTokens, kHeads, kDim}, 1),
                     v = HostTensor::random_normal(DType::bf16, {1, kTokens, kHeads, kDim}, 2);
    HostTensor k_cache(DType::e4m3, {kPages, kPageSize, kHeads, kDim}), v_cache = k_cache;
    const double of_all = 0.01;
    HostTensor k_scale = of_tokens ? HostTensor(DType::f32, {kPages, kPageSize, kHeads})
                                   : HostTensor::from_doubles(DType::f32, {1}, &of_all, 1),
               v_scale = k_scale;
    const double pages[] = {4, 1, 5, 0, 2}, used_keys[] = {kTokens};
    const HostTensor table = HostTensor::from_doubles(DType::i32, {1, 5}, pages, 5),
                     used = HostTensor::from_doubles(DType::i32, {1}, used_keys, 1);
    AppendOptions append;
    append.page_table = table.view(), append.seqused_kv = used.view();
    append.k_scale = k_scale.view(), append.v_scale = v_scale.view();
    engine().append(k.view(), v.view(), k_cache.view(), v_cache.view(), append);
    const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 2, 4, kDim}, 3);
    AttentionOptions options;
    options.page_table = table.view(), options.seqused_kv = used.view();
    options.k_scale = k_scale.view(), options.v_scale = v_scale.view();
    const HostTensor out =
        HostTensor::from_device(engine().attention(q.view(), k_cache.view(), v_cache.view(), options));
    const reference::Result exact = reference::attention(q.view(), k.view(), v.view(), {});
    const std::vector<double> is = out.to_doubles();
    // A number of e4m3 is off by 1/16 of itself at most, and so is each value and with it their mean; that scores are
    // off, too, adds little.
    for (std::size_t i = 0; i < is.size(); ++i) CHECK(std::abs(is[i] - exact.out[i]) < 0.1);
  }
}
