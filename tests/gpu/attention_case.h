// SPDX-License-Identifier: Apache-2.0
// One attention problem with its inputs on the host and the GPU, and the check of a result.
#pragma once

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "runtime/support/parallel.h"

namespace flashjit::tests {

// Shared by tests that do not look at the cache: it compiles each kernel once and leaves nothing on the disk.
inline Engine& shared_engine() {
  static Engine* const engine = [] {
    EngineOptions options = EngineOptions::from_environment();
    options.policy = Policy::off;
    return new Engine(options);
  }();
  return *engine;
}

// The first one.
inline const DeviceInfo& test_device() {
  static const DeviceInfo device = shared_engine().system().devices.at(0);
  return device;
}

// In parallel, for tests that run many kernels.
inline void compile_all(const Problem& problem, const std::vector<Variant>& variants, const std::string& architecture) {
  runtime::parallel_for(variants.size(),
                        [&](std::size_t i) { shared_engine().compile(problem, variants[i], architecture); });
}

struct Sizes {
  std::int64_t batch = 2, seqlen_q = 33, seqlen_kv = 77, num_heads_q = 4, num_heads_kv = 2, head_dim = 64,
               head_dim_v = 64;
};

class AttentionCase {
 public:
  explicit AttentionCase(const Sizes& sizes = {}, DType dtype = DType::bf16, std::uint64_t seed = 1)
      : AttentionCase(
            HostTensor::random_normal(dtype, {sizes.batch, sizes.seqlen_q, sizes.num_heads_q, sizes.head_dim}, seed),
            HostTensor::random_normal(dtype, {sizes.batch, sizes.seqlen_kv, sizes.num_heads_kv, sizes.head_dim},
                                      seed + 1),
            HostTensor::random_normal(dtype, {sizes.batch, sizes.seqlen_kv, sizes.num_heads_kv, sizes.head_dim_v},
                                      seed + 2)) {}
  AttentionCase(const HostTensor& q_values, const HostTensor& k_values, const HostTensor& v_values)
      : q_host(q_values),
        k_host(k_values),
        v_host(v_values),
        q(q_host.to_device(nullptr, test_device().ordinal)),
        k(k_host.to_device(nullptr, test_device().ordinal)),
        v(v_host.to_device(nullptr, test_device().ordinal)),
        out_shape{q_host.shape()[0], q_host.shape()[1], q_host.shape()[2], v_host.shape()[3]},
        lse_shape{q_host.shape()[0], q_host.shape()[2], q_host.shape()[1]} {}

  DeviceTensor poisoned_out() const { return poisoned(q_host.dtype(), out_shape).to_device(nullptr, q.device()); }
  DeviceTensor poisoned_lse() const { return poisoned(DType::f32, lse_shape).to_device(nullptr, q.device()); }

  // What the call should give, and how far off it may be.
  struct Expected {
    reference::Result exact, low;

    void check_out(const HostTensor& out) const { check(reference::compare(out, exact, low)); }
    void check_out(const DeviceTensor& out) const { check_out(HostTensor::from_device(out)); }
    void check_lse(const DeviceTensor& lse) const {
      check(reference::compare_lse(HostTensor::from_device(lse), exact, low));
    }

   private:
    static void check(const reference::Comparison& comparison) {
      CAPTURE(comparison.max_error);
      CAPTURE(comparison.bound);
      CHECK(comparison.passed);
    }
  };
  Expected expected(const AttentionOptions& opts) const {
    return {reference::attention(q_host.view(), k_host.view(), v_host.view(), opts),
            reference::attention_in_low_precision(q_host.view(), k_host.view(), v_host.view(), opts)};
  }

  template <class Out>
  void check_out(const Out& out, const AttentionOptions& opts = {}) const {
    expected(opts).check_out(out);
  }
  void check_out_and_lse(const DeviceTensor& out, const DeviceTensor& lse, const AttentionOptions& opts) const {
    const Expected both = expected(opts);
    both.check_out(out);
    both.check_lse(lse);
  }

  // NaN everywhere: what a kernel forgets to write shows.
  static HostTensor poisoned(DType dtype, const Dims& shape) {
    HostTensor host(dtype, shape);
    for (std::size_t i = 0; i < host.element_count(); ++i) {
      store_element(host.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
    }
    return host;
  }

  HostTensor q_host, k_host, v_host;
  DeviceTensor q, k, v;
  Dims out_shape, lse_shape;
};

}  // namespace flashjit::tests
