// SPDX-License-Identifier: Apache-2.0
// The calls that flashjit bench times are right, in the emulator and for smaller cells.
#include <doctest/doctest.h>

#include "cli/bench/timed_calls.h"
#include "flashjit/reference.h"
#include "tests/support/kept_kernels.h"

using namespace flashjit;
using namespace flashjit::cli;

namespace {

Engine& engine() {
  static Engine emulating([] {
    EngineOptions options = tests::options_with_kept_kernels();
    options.emulate = "sm_90a";
    options.check_pages = true;
    return options;
  }());
  return emulating;
}

bool is_right(const TimedCall& call) {
  engine().attention(call.q, call.k, call.v, call.out, call.options);
  const reference::Result exact = reference::attention(call.q, call.k, call.v, call.options);
  const reference::Result low = reference::attention_in_low_precision(call.q, call.k, call.v, call.options);
  const DeviceTensor copy = DeviceTensor::from_host(call.out, nullptr, kHostMemory);
  return reference::compare(HostTensor::from_device(copy), exact, low).passed;
}

}  // namespace

TEST_CASE("new queries over contiguous keys and over pages, with a plan, in memory of larger cells") {
  const DecodeCell cell{"large", 2, 8, 2, 512, 2};
  const BenchTensors tensors = make_tensors(DType::bf16, Dims{1 << 14}, Dims{1 << 19}, kHostMemory);
  for (const std::int64_t page_size : {0, 16, 256}) {
    CAPTURE(page_size);
    const DecodeCall call(engine(), cell, page_size, tensors);
    CHECK(call.timed().options.plan != nullptr);
    CHECK(call.timed().options.page_table.has_value() == (page_size > 0));
    CHECK(is_right(call.timed()));
  }
}

TEST_CASE("new queries over a cache of e4m3, with scales of tokens or none") {
  const DecodeCell cell{"large", 2, 8, 2, 512, 2};
  BenchTensors tensors = make_tensors(DType::bf16, Dims{1 << 14}, kHostMemory);
  BenchTensors cache = make_tensors(DType::e4m3, Dims{1 << 19}, kHostMemory);
  tensors.k = std::move(cache.k), tensors.v = std::move(cache.v);
  for (const bool token_scales : {false, true}) {
    if (token_scales)
      tensors.scales = HostTensor::random_normal(DType::f32, {1 << 12}, 1).to_device(nullptr, kHostMemory);
    for (const std::int64_t page_size : {0, 16}) {
      const DecodeCall call(engine(), cell, page_size, tensors);
      CHECK(call.timed().options.k_scale.has_value() == token_scales);
      CHECK(is_right(call.timed()));
    }
  }
}

TEST_CASE("packed sequences") {
  const RaggedCell cell{"some", 128, {70, 1, 33}};
  CHECK(is_right(RaggedCall(cell, make_tensors(DType::bf16, Dims{104, 2048}, kHostMemory)).timed()));
}
