// SPDX-License-Identifier: Apache-2.0
// Caches of e4m3 on the GPU: read by the kernels of few rows, and written.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "tests/gpu/hopper_case.h"

using namespace flashjit;
using tests::has_hopper, tests::on_device, tests::shared_engine, tests::verify_variants;

namespace {

Problem problem_of(DType dtype, int head_dim, int head_dim_v, bool token_scales) {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .causal = true,
          .e4m3 = true,
          .token_scales = token_scales};
}

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return std::memcmp(a.data(), b.data(), a.element_count() * size_of(a.dtype())) == 0;
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("a cache of e4m3 with scales, on lengths that end within a block") {
  if (!has_hopper()) return;
  for (const bool token_scales : {false, true}) {
    Problem problem = problem_of(DType::bf16, 72, 40, token_scales);
    verify_variants(problem, {{2, 3, 200, 4, 2}});
    problem.ragged = problem.paged = true;
    verify_variants(problem, {{2, 3, 200, 4, 2}});
  }
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("e4m3");

TEST_CASE("every variant is right in every case of verify, for head dims of every panel width") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{8, 8}, {16, 128}, {40, 72}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
    for (const DType dtype : {DType::f16, DType::bf16})
      for (const bool token_scales : {false, true})
        verify_variants(problem_of(dtype, head_dim, head_dim_v, token_scales), cli::verify_shapes());
}

TEST_CASE("sequences of different lengths and pages") {
  if (!has_hopper()) return;
  for (const bool paged : {false, true})
    for (const bool token_scales : {false, true}) {
      Problem problem = problem_of(DType::bf16, 128, 128, token_scales);
      problem.ragged = true, problem.paged = paged;
      verify_variants(problem, cli::verify_shapes());
    }
}

TEST_CASE("all numbers come out as they are, NaN among them") {
  if (!has_hopper()) return;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    HostTensor v(DType::e4m3, {256, 1, 1, 16});
    for (std::int64_t i = 0; i < 256 * 16; ++i)
      static_cast<std::uint8_t*>(v.data())[i] = static_cast<std::uint8_t>(i / 16);
    const DeviceTensor q = on_device(HostTensor::random_normal(dtype, {256, 1, 1, 16}, 1)),
                       k = on_device(HostTensor::random_normal(DType::e4m3, {256, 1, 1, 16}, 2)), values = on_device(v);
    const std::vector<double> is = HostTensor::from_device(shared_engine().attention(q, k, values)).to_doubles(),
                              should = v.to_doubles();
    for (std::size_t i = 0; i < is.size(); ++i)
      CHECK((is[i] == should[i] || (std::isnan(is[i]) && std::isnan(should[i]))));
  }
}

TEST_CASE("what is appended is what the reference appends, and attention reads it") {
  if (!has_hopper()) return;
  const double length = 300;
  const HostTensor used = HostTensor::from_doubles(DType::i32, {1}, &length, 1),
                   k = HostTensor::random_normal(DType::bf16, {1, 300, 4, 128}, 1),
                   v = HostTensor::random_normal(DType::bf16, {1, 300, 4, 128}, 2),
                   q = HostTensor::random_normal(DType::bf16, {1, 1, 16, 128}, 3);
  HostTensor k_cache(DType::e4m3, {1, 320, 4, 128}), v_cache = k_cache, k_scale(DType::f32, {1, 320, 4}),
                                                     v_scale = k_scale;
  const DeviceTensor there[] = {on_device(k),       on_device(v),       on_device(used),    on_device(k_cache),
                                on_device(v_cache), on_device(k_scale), on_device(v_scale), on_device(q)};
  AppendOptions append;
  append.seqused_kv = there[2].view(), append.k_scale = there[5].view(), append.v_scale = there[6].view();
  shared_engine().append(there[0], there[1], there[3], there[4], append);
  AttentionOptions options;
  options.seqused_kv = there[2].view(), options.k_scale = there[5].view(), options.v_scale = there[6].view();
  const HostTensor out = HostTensor::from_device(shared_engine().attention(there[7], there[3], there[4], options));

  append.seqused_kv = options.seqused_kv = used.view();
  append.k_scale = options.k_scale = k_scale.view(), append.v_scale = options.v_scale = v_scale.view();
  reference::append(k.view(), v.view(), k_cache.view(), v_cache.view(), append);
  CHECK(same_bytes(HostTensor::from_device(there[3]), k_cache));
  CHECK(same_bytes(HostTensor::from_device(there[4]), v_cache));
  CHECK(same_bytes(HostTensor::from_device(there[5]), k_scale));
  CHECK(same_bytes(HostTensor::from_device(there[6]), v_scale));
  const reference::Result exact = reference::attention(q.view(), k_cache.view(), v_cache.view(), options),
                          low =
                              reference::attention_in_low_precision(q.view(), k_cache.view(), v_cache.view(), options);
  CHECK(reference::compare(out, exact, low).passed);
}

TEST_SUITE_END();
