// SPDX-License-Identifier: Apache-2.0
// Bad input that only the driver can tell: nothing is launched or written, and the next good call succeeds.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"

namespace {

using namespace flashjit;
using tests::AttentionCase;
using tests::shared_engine;

// A call whose arguments a test spoils one at a time.
struct Call {
  explicit Call(const AttentionCase& c)
      : q(c.q.view()), k(c.k.view()), v(c.v.view()), out_memory(c.poisoned_out()), out(out_memory.view()) {}
  Tensor q, k, v;
  DeviceTensor out_memory;
  Tensor out;
  AttentionOptions opts;
};

// The error that the spoilt call gets; afterwards the output is untouched, the context as before, and a good call
// works.
Error refusal(const AttentionCase& c, const std::function<void(Call&)>& spoil) {
  Call call(c);
  spoil(call);
  const CUcontext context = tests::current_context();
  const HostTensor before = HostTensor::from_device(call.out_memory);
  Error refused(ErrorCode::io, "the call was not refused");
  try {
    shared_engine().attention(call.q, call.k, call.v, call.out, call.opts);
  } catch (const Error& error) {
    refused = error;
  }
  const HostTensor after = HostTensor::from_device(call.out_memory);
  const std::size_t bytes = before.element_count() * size_of(before.dtype());
  CHECK(std::memcmp(before.data(), after.data(), bytes) == 0);
  CHECK(tests::current_context() == context);
  c.check_out(shared_engine().attention(c.q, c.k, c.v));
  return refused;
}

std::string invalid(const AttentionCase& c, const std::function<void(Call&)>& spoil) {
  const Error error = refusal(c, spoil);
  CHECK(error.code() == ErrorCode::invalid_argument);
  return error.what();
}

}  // namespace

TEST_CASE("host memory is named, whether CUDA knows it or not") {
  const AttentionCase c;
  HostTensor host = HostTensor(DType::bf16, {2, 256, 4, 64});
  void* unknown = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(host.data()) + 63) / 64 * 64);
  void* pinned = nullptr;
  {
    const tests::ScopedContext context(0);
    DRIVER_CALL(cuMemHostAlloc, &pinned, 1 << 20, CU_MEMHOSTALLOC_PORTABLE);
  }
  CHECK(invalid(c, [&](Call& call) { call.q.data = unknown; }).starts_with("q: must be device memory"));
  CHECK(invalid(c, [&](Call& call) { call.k.data = unknown; }).starts_with("k: must be device memory"));
  CHECK(invalid(c, [&](Call& call) { call.v.data = unknown; }).starts_with("v: must be device memory"));
  CHECK(invalid(c, [&](Call& call) { call.out.data = unknown; }).starts_with("out: must be device memory"));
  CHECK(invalid(c, [&](Call& call) {
          call.opts.lse = Tensor(unknown, DType::f32, c.lse_shape);
        }).starts_with("lse: must be device memory"));
  CHECK(invalid(c, [&](Call& call) { call.k.data = pinned; }) == "k: must be device memory, was host memory");
  const tests::ScopedContext context(0);
  DRIVER_CALL(cuMemFreeHost, pinned);
}

TEST_CASE("input that the views betray is refused on the GPU as well") {
  const AttentionCase c;
  CHECK(invalid(c, [](Call& call) { call.q.data = nullptr; }).starts_with("q: must point to its elements"));
  CHECK(invalid(c, [](Call& call) { call.k.dtype = DType::f16; }).starts_with("k: dtype must be bf16"));
  CHECK(invalid(c, [](Call& call) { call.out.data = call.q.data; }).starts_with("out: must not overlap q"));
  CHECK(invalid(c, [](Call& call) {
          call.opts.softmax_scale = std::numeric_limits<float>::quiet_NaN();
        }).starts_with("softmax_scale: must be finite"));
}

TEST_CASE("a variant that is not legal is refused before anything is compiled") {
  const AttentionCase c;
  const std::uint64_t compiles = shared_engine().counters().compiles;
  const auto with_rows = [](auto variant, int block_q) {
    return [=](Call& call) mutable {
      variant.block_q = block_q;
      call.opts.variant = variant;
    };
  };
  for (const int block_q : {65, 64 + (1 << 16)}) {
    invalid(c, with_rows(MmaVariant{}, block_q));
    invalid(c, with_rows(HopperVariant{}, block_q));
  }
  CHECK(shared_engine().counters().compiles <= compiles + 1);  // the good call's own kernel
}

TEST_CASE("an unknown device is named") {
  try {
    shared_engine().prepare({}, 1000);
    FAIL("an Error was expected");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(std::string(error.what()).starts_with("device: must be from 0 to "));
  }
  CHECK_THROWS_AS(DeviceTensor::allocate(DType::f32, {4}, nullptr, 1000), Error);
}

TEST_CASE("tensors and streams of different devices are named") {
  if (shared_engine().system().devices.size() < 2) {
    MESSAGE("one device only: nothing to tell apart");
    return;
  }
  const AttentionCase c;
  const DeviceTensor elsewhere = c.k_host.to_device(nullptr, 1);
  CHECK(invalid(c, [&](Call& call) { call.k = elsewhere.view(); }) == "k: must be on device 0 like q, was on device 1");
  const tests::ScopedContext other(1);
  const tests::ScopedStream stream;
  CHECK(invalid(c, [&](Call& call) { call.opts.stream = stream.get(); }) ==
        "stream: must belong to device 0 like q, belonged to device 1");
}
