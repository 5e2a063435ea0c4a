// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_cases.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <limits>

namespace flashjit::cli {
namespace {

constexpr double kOutlierRate = 0.01;
constexpr std::uint64_t kSeed = 2026;

HostTensor filled_with_nan(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  const auto count = static_cast<std::int64_t>(tensor.element_count());
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(tensor.data(), dtype, i, std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

std::string describe(const char* what, const reference::Comparison& comparison) {
  return fmt::format("{}: error {:.3g} is above {:.3g}", what, comparison.max_error, comparison.bound);
}

}  // namespace

const std::vector<CaseShape>& verify_shapes() {
  static const std::vector<CaseShape> shapes = {
      {1, 1, 1, 1, 1},      // the smallest
      {2, 1, 77, 4, 2},     // one query, grouped heads
      {1, 5, 0, 2, 1},      // no key at all
      {1, 0, 64, 1, 1},     // no query at all
      {1, 64, 64, 1, 1},    // whole blocks
      {2, 129, 257, 4, 4},  // one beyond whole blocks
      {1, 257, 129, 8, 2},  // causal: the first rows see no key
      {1, 512, 512, 2, 1},  // several steps of every pipeline
      {1, 127, 1023, 6, 1}  // one short of whole blocks, one key head
  };
  return shapes;
}

std::string to_string(const CaseShape& shape) {
  return fmt::format("b{} q{} kv{} h{}/{}", shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.heads_q,
                     shape.heads_kv);
}

VerifyCase::VerifyCase(const Problem& problem, const CaseShape& shape, int device) : device_(device) {
  const Dims q_shape{shape.batch, shape.seqlen_q, shape.heads_q, problem.head_dim};
  const Dims k_shape{shape.batch, shape.seqlen_kv, shape.heads_kv, problem.head_dim};
  const Dims v_shape{shape.batch, shape.seqlen_kv, shape.heads_kv, problem.head_dim_v};
  const HostTensor q = HostTensor::random_normal(problem.dtype, q_shape, kSeed, kOutlierRate);
  const HostTensor k = HostTensor::random_normal(problem.dtype, k_shape, kSeed + 1, kOutlierRate);
  const HostTensor v = HostTensor::random_normal(problem.dtype, v_shape, kSeed + 2, kOutlierRate);
  options_.causal = problem.causal;
  exact_ = reference::attention(q.view(), k.view(), v.view(), options_);
  low_ = reference::attention_in_low_precision(q.view(), k.view(), v.view(), options_);
  q_ = q.to_device(nullptr, device);
  k_ = k.to_device(nullptr, device);
  v_ = v.to_device(nullptr, device);
  poisoned_out_ = filled_with_nan(problem.dtype, {shape.batch, shape.seqlen_q, shape.heads_q, problem.head_dim_v});
  poisoned_lse_ = filled_with_nan(DType::f32, {shape.batch, shape.heads_q, shape.seqlen_q});
}

std::string VerifyCase::problem_with(Engine& engine, const Variant& variant) const {
  const DeviceTensor out = poisoned_out_.to_device(nullptr, device_);
  const DeviceTensor lse = poisoned_lse_.to_device(nullptr, device_);
  AttentionOptions options = options_;
  options.variant = variant;
  options.lse = lse.view();
  engine.attention(q_, k_, v_, out, options);
  const reference::Comparison values = reference::compare(HostTensor::from_device(out), exact_, low_);
  if (!values.passed) return describe("out", values);
  const reference::Comparison sums = reference::compare_lse(HostTensor::from_device(lse), exact_);
  return sums.passed ? "" : describe("lse", sums);
}

}  // namespace flashjit::cli
