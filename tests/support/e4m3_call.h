// SPDX-License-Identifier: Apache-2.0
// Calls with queries, keys and values of e4m3, for tests of kernels of every family.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"

namespace flashjit::tests {

inline Problem problem_of_e4m3(int head_dim, int head_dim_v, bool is_fast, DType dtype = DType::bf16) {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .e4m3 = true,
          .e4m3_queries = true,
          .fast_sums = is_fast};
}

struct E4m3Call {
  HostTensor q, k, v, q_scale, k_scale, v_scale;
  AttentionOptions options;

  E4m3Call(const Dims& q_shape, const Dims& k_shape)
      : q(HostTensor::random_normal(DType::e4m3, q_shape, 1)),
        k(HostTensor::random_normal(DType::e4m3, k_shape, 2)),
        v(HostTensor::random_normal(DType::e4m3, k_shape, 3)) {}

  // Each of its own, some powers of two apart.
  void set_scales(const Dims& of_q, const Dims& of_k, const Dims& of_v) {
    const auto scales = [](const Dims& shape, int first) {
      HostTensor made(DType::f32, shape);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(made.element_count()); ++i)
        store_element(made.data(), DType::f32, i, std::ldexp(1.25, static_cast<int>((first + 3 * i) % 5) - 3));
      return made;
    };
    q_scale = scales(of_q, 1), k_scale = scales(of_k, 2), v_scale = scales(of_v, 4);
    options.q_scale = q_scale.view(), options.k_scale = k_scale.view(), options.v_scale = v_scale.view();
  }
  // Empty where the output is right.
  std::string problem(Engine& engine) const {
    const reference::Result exact = reference::attention(q.view(), k.view(), v.view(), options),
                            low = reference::attention_in_low_precision(q.view(), k.view(), v.view(), options);
    const HostTensor out = HostTensor::from_device(engine.attention(q.view(), k.view(), v.view(), options));
    const reference::Comparison compared = reference::compare(out, exact, low);
    return compared.passed ? ""
                           : std::to_string(compared.max_error) + " must be at most " + std::to_string(compared.bound);
  }
  // What it is refused with.
  std::string error(Engine& engine) const {
    try {
      engine.attention(q.view(), k.view(), v.view(), options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

// Whether rows that see one key have its value, for each number of e4m3 but NaN, whatever their maximum is.
inline bool one_key_comes_out_as_it_is(Engine& engine, bool is_fast, double scale) {
  HostTensor v(DType::e4m3, {1, 254, 1, 16});
  for (std::int64_t i = 0; i < 254 * 16; ++i)
    static_cast<std::uint8_t*>(v.data())[i] = static_cast<std::uint8_t>(i / 16 + (i / 16 >= 127));
  const HostTensor q = HostTensor::random_normal(DType::e4m3, {1, 254, 1, 16}, 1),
                   k = HostTensor::random_normal(DType::e4m3, {1, 254, 1, 16}, 2),
                   of_q = HostTensor::from_doubles(DType::f32, {1}, &scale, 1);
  AttentionOptions options;
  options.window = {0, 0};
  options.q_scale = of_q.view();
  options.accumulate = is_fast ? Accumulate::fast : Accumulate::exact;
  const HostTensor out = HostTensor::from_device(engine.attention(q.view(), k.view(), v.view(), options));
  return out.to_doubles() == v.to_doubles();
}

// Of values whose mean is 1, over 16384 keys: by what share of it the mean of all outputs is off.
class MeanOfManyKeys {
 public:
  MeanOfManyKeys() {
    for (std::int64_t i = 0; i < kKeys * kDim; ++i)
      store_element(v_.data(), DType::e4m3, i, 1 + load_element(v_.data(), DType::e4m3, i));
    exact_ = reference::attention(q_.view(), k_.view(), v_.view());
  }
  double is_off_by(Engine& engine, Accumulate accumulate, const char* variant) const {
    AttentionOptions options;
    options.accumulate = accumulate, options.variant = parse_variant(variant);
    const std::vector<double> out =
        HostTensor::from_device(engine.attention(q_.view(), k_.view(), v_.view(), options)).to_doubles();
    double sum = 0, sum_of_exact = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i], sum_of_exact += exact_.out[i];
    return std::abs(sum / sum_of_exact - 1);
  }

 private:
  static constexpr std::int64_t kKeys = 16384, kDim = 16;
  const HostTensor q_ = HostTensor::random_normal(DType::e4m3, {1, 64, 1, kDim}, 1),
                   k_ = HostTensor::random_normal(DType::e4m3, {1, kKeys, 1, kDim}, 2);
  HostTensor v_ = HostTensor::random_normal(DType::e4m3, {1, kKeys, 1, kDim}, 3);
  reference::Result exact_;
};

}  // namespace flashjit::tests
