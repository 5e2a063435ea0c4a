// SPDX-License-Identifier: Apache-2.0
// Ragged batches without a GPU: real kernels in the emulator, which knows which memory they may touch, against the
// reference, with NaN around every sequence.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "flashjit/flashjit.h"
#include "tests/support/ragged_batch.h"

namespace {

using namespace flashjit;
using tests::RaggedBatch;

Engine& engine_for(const std::string& architecture) {
  const auto emulating = [](const char* name) {
    EngineOptions options = EngineOptions::from_environment();
    options.policy = Policy::off;
    options.emulate = name;
    return options;
  };
  static Engine sm_80(emulating("sm_80")), sm_90a(emulating("sm_90a"));
  return architecture == "sm_80" ? sm_80 : sm_90a;
}

}  // namespace

TEST_CASE("sequences of any lengths, packed or padded, with empty ones among them") {
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      CAPTURE(seed);
      RaggedBatch(seed, {}).check(engine_for(architecture));
    }
  }
}

TEST_CASE("keys and values in pages of any size, in any order, with NaN around them") {
  for (const std::string architecture : {"sm_80", "sm_90a"})
    for (const std::int64_t page_size : {1, 8, 16, 24, 64, 100, 256}) {
      CAPTURE(architecture);
      CAPTURE(page_size);
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        RaggedBatch(seed, {.page_size = page_size}).check(engine_for(architecture));
      }
    }
}

namespace {

HostTensor ints(std::initializer_list<int> values) {
  HostTensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(tensor.data()));
  return tensor;
}

// Packed, of three sequences, two heads and 64 columns.
struct Packed {
  HostTensor q = HostTensor::random_normal(DType::bf16, {90, 2, 64}, 1);
  HostTensor k = HostTensor::random_normal(DType::bf16, {150, 2, 64}, 2);
  HostTensor v = HostTensor::random_normal(DType::bf16, {150, 2, 64}, 3);
};

// Of rows that belong to a sequence.
void check_near(const HostTensor& out, const reference::Result& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.out.size(); ++i) {
    if (exact.lse[i / 64 % 2 * 90 + i / 128] == -std::numeric_limits<double>::infinity()) continue;
    const double value = load_element(out.data(), out.dtype(), static_cast<std::int64_t>(i));
    largest = std::max(largest, std::isnan(value) ? 1e9 : std::abs(value - exact.out[i]));
  }
  CHECK(largest < 0.03);
}

}  // namespace

TEST_CASE("lengths and places that make no sense are cut to the tensors: nothing outside of them is touched") {
  const Packed packed;
  struct Case {
    const char* what;
    HostTensor of_queries, of_keys;
    bool queries_overlap = false;  // then no rows are promised
  };
  const Case all[] = {{"one falls", ints({0, 200, -5, 90}), ints({0, 150, 150, 150}), true},
                      {"all fall and leave", ints({50, 20, 80, 1000}), ints({-7, 3, 2000, 9})},
                      {"zeros behind the last", ints({0, 40, 90, 0, 0, 0, 0}), ints({0, 70, 150, 0, 0, 0, 0})},
                      {"before the first row", ints({-3, -2, -1, 0}), ints({0, 50, 100, 150})},
                      {"keys anywhere", ints({0, 30, 60, 90}), ints({1 << 30, 5, -(1 << 30), 1 << 30})}};
  for (const std::string architecture : {"sm_80", "sm_90a"})
    for (const auto& [what, of_queries, of_keys, queries_overlap] : all) {
      CAPTURE(architecture);
      CAPTURE(std::string(what));
      AttentionOptions options;
      options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
      const DeviceTensor out =
          engine_for(architecture).attention(packed.q.view(), packed.k.view(), packed.v.view(), options);
      CHECK(out.shape() == Dims{90, 2, 64});
      if (!queries_overlap)
        check_near(HostTensor::from_device(out),
                   reference::attention(packed.q.view(), packed.k.view(), packed.v.view(), options));
    }
}

TEST_CASE("packed tensors may have a batch of one, and a sequence gets what it gets alone") {
  const Packed packed;
  const HostTensor of_queries = ints({0, 33, 33, 90}), of_keys = ints({0, 70, 100, 150});
  for (const std::string architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    AttentionOptions options;
    options.causal = true;
    options.cu_seqlens_q = of_queries.view(), options.cu_seqlens_kv = of_keys.view();
    Engine& engine = engine_for(architecture);
    const HostTensor out =
        HostTensor::from_device(engine.attention(packed.q.view(), packed.k.view(), packed.v.view(), options));
    const auto with_batch = [](const HostTensor& tensor) {
      return Tensor(const_cast<void*>(tensor.data()), tensor.dtype(), {1, tensor.shape()[0], 2, 64});
    };
    const DeviceTensor same =
        engine.attention(with_batch(packed.q), with_batch(packed.k), with_batch(packed.v), options);
    CHECK(same.shape() == Dims{1, 90, 2, 64});
    CHECK(std::memcmp(HostTensor::from_device(same).data(), out.data(), out.element_count() * 2) == 0);
    // The last sequence.
    const auto rows = [](const HostTensor& tensor, std::int64_t first, std::int64_t count) {
      return Tensor(static_cast<char*>(const_cast<void*>(tensor.data())) + first * 2 * 64 * 2, tensor.dtype(),
                    {1, count, 2, 64});
    };
    AttentionOptions alone;
    alone.causal = true;
    const reference::Result exact =
        reference::attention(rows(packed.q, 33, 57), rows(packed.k, 100, 50), rows(packed.v, 100, 50), alone);
    for (std::size_t i = 0; i < exact.out.size(); ++i) {
      const double value = load_element(out.data(), out.dtype(), static_cast<std::int64_t>(33 * 2 * 64 + i));
      if (!(std::abs(value - exact.out[i]) < 0.03)) FAIL_CHECK("element ", i, " is ", value, ", not ", exact.out[i]);
    }
  }
}
