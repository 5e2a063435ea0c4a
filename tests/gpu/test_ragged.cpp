// SPDX-License-Identifier: Apache-2.0
// Ragged batches: every kernel family of the device against the reference, with NaN around every sequence.
#include <doctest/doctest.h>

#include "flashjit/flashjit.h"
#include "tests/gpu/attention_case.h"
#include "tests/support/ragged_batch.h"

namespace {

using namespace flashjit;
using tests::RaggedBatch;
using tests::shared_engine;
using tests::test_device;

constexpr std::uint64_t kBatches = 40;

}  // namespace

TEST_SUITE("sanitizer") {
  TEST_CASE("a few ragged batches in both families") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      if (test_device().architecture == "sm_90a")
        RaggedBatch(seed, {}).check(shared_engine(), parse_variant("hopper-q64-kv64-whole-ppoff-rare"));
      RaggedBatch(seed, {}).check(shared_engine(), parse_variant("mma-q64-kv32"));
    }
  }
}

TEST_CASE("ragged batches with the kernels that the library chooses") {
  for (const int head_dim : {64, 128, 80, 256})
    for (std::uint64_t seed = 0; seed < kBatches; ++seed) {
      CAPTURE(head_dim);
      CAPTURE(seed);
      RaggedBatch(seed, {DType::bf16, head_dim, head_dim, 700}).check(shared_engine());
    }
}

TEST_CASE("ragged batches with kernels of the mma family") {
  for (const char* variant : {"mma-q128-kv64-w4-k2-v1-c2-overlap-qsmem", "mma-q64-kv32", "v1"})
    for (std::uint64_t seed = 0; seed < kBatches; ++seed) {
      CAPTURE(variant);
      CAPTURE(seed);
      RaggedBatch(seed, {DType::f16, 64, 64, 700}).check(shared_engine(), parse_variant(variant));
    }
}
