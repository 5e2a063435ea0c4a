// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 on the GPU.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cli/verify/cases.h"
#include "tests/gpu/hopper_case.h"

using namespace flashjit;
using tests::has_hopper, tests::on_device, tests::shared_engine, tests::verify_variants;

namespace {

Problem problem_of(int head_dim, int head_dim_v, bool is_fast, bool causal = false) {
  return {.dtype = causal ? DType::f16 : DType::bf16,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .causal = causal,
          .e4m3 = true,
          .e4m3_queries = true,
          .fast_sums = is_fast};
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("products of e4m3 on lengths that end within a block") {
  if (!has_hopper()) return;
  for (const bool is_fast : {false, true}) {
    Problem problem = problem_of(80, 48, is_fast, true);
    verify_variants(problem, {{2, 130, 200, 4, 2}});
    problem.ragged = problem.paged = true;
    verify_variants(problem, {{2, 130, 200, 4, 2}});
  }
}

TEST_CASE("values that come transposed, on lengths that end within a block and between multiples of 16") {
  if (!has_hopper()) return;
  for (const bool is_fast : {false, true}) {
    Problem problem = problem_of(80, 48, is_fast, true);
    problem.values_transposed = true;
    verify_variants(problem, {{2, 130, 203, 4, 2}});
  }
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("products");

TEST_CASE("every variant is right in every case of verify, for head dims of every panel width") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{16, 16}, {32, 48}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
    for (const bool is_fast : {false, true})
      for (const bool causal : {false, true})
        verify_variants(problem_of(head_dim, head_dim_v, is_fast, causal), cli::verify_shapes());
}

TEST_CASE("scales of blocks of rows, in every variant") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}})
    for (const bool causal : {false, true}) {
      Problem problem = problem_of(head_dim, head_dim_v, false, causal);
      problem.block_scales = true;
      verify_variants(problem, cli::verify_shapes());
    }
}

TEST_CASE("values that come transposed, in every variant") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] : {std::pair{32, 48}, {64, 64}, {128, 128}, {192, 128}, {256, 256}})
    for (const bool is_fast : {false, true})
      for (const bool causal : {false, true}) {
        Problem problem = problem_of(head_dim, head_dim_v, is_fast, causal);
        problem.values_transposed = true;
        verify_variants(problem, cli::verify_shapes());
      }
}

TEST_CASE("outputs of e4m3, of both kinds of values, in every variant") {
  if (!has_hopper()) return;
  for (const auto& [head_dim, head_dim_v] : {std::pair{32, 48}, {64, 64}, {128, 128}, {256, 256}})
    for (const bool values_transposed : {false, true}) {
      Problem problem = problem_of(head_dim, head_dim_v, values_transposed);
      problem.values_transposed = values_transposed, problem.out_e4m3 = true;
      verify_variants(problem, cli::verify_shapes());
    }
}

TEST_CASE("sequences of different lengths and pages") {
  if (!has_hopper()) return;
  for (const bool paged : {false, true})
    for (const bool is_fast : {false, true}) {
      Problem problem = problem_of(128, 128, is_fast, true);
      problem.ragged = true, problem.paged = paged;
      verify_variants(problem, cli::verify_shapes());
    }
}

TEST_CASE("exact sums keep the mean of values over many keys") {
  if (!has_hopper()) return;
  constexpr std::int64_t kKeys = 16384, kDim = 128;
  HostTensor v(DType::e4m3, {1, kKeys, 1, kDim});
  for (std::size_t i = 0; i < v.element_count(); ++i)
    store_element(v.data(), DType::e4m3, static_cast<std::int64_t>(i), 1);
  const DeviceTensor q = on_device(HostTensor::random_normal(DType::e4m3, {1, 256, 1, kDim}, 1)),
                     k = on_device(HostTensor::random_normal(DType::e4m3, {1, kKeys, 1, kDim}, 2)),
                     values = on_device(v);
  AttentionOptions options;
  options.out_dtype = DType::f16;
  const auto bias = [&] {
    const std::vector<double> out =
        HostTensor::from_device(shared_engine().attention(q, k, values, options)).to_doubles();
    return std::abs(std::accumulate(out.begin(), out.end(), 0.0) / static_cast<double>(out.size()) - 1);
  };
  CHECK(bias() <= 1e-3);
  options.accumulate = Accumulate::fast;
  MESSAGE("fast sums are off by ", bias());
}

TEST_SUITE_END();
