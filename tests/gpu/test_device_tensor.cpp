// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <utility>

#include "flashjit/flashjit.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/same_bytes.h"

using namespace flashjit;
using tests::same_bytes;

TEST_CASE("values come back from the device as they went") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const HostTensor host = HostTensor::random_normal(dtype, {3, 5, 7}, 11);
    const DeviceTensor device = host.to_device();
    CHECK(device.shape() == host.shape());
    CHECK(device.size_bytes() == 3 * 5 * 7 * size_of(dtype));
    CHECK(same_bytes(HostTensor::from_device(device), host));
  }
}

TEST_CASE("a copy on a stream of its own needs no context") {
  const tests::ScopedContext context(0);
  const tests::ScopedStream stream;
  const tests::ScopedContext none(tests::kNoContext);
  const HostTensor host = HostTensor::random_normal(DType::f32, {1000}, 12);
  const DeviceTensor device = host.to_device(stream.get());
  CHECK(device.stream() == stream.get());
  CHECK(device.device() == 0);
  CHECK(same_bytes(HostTensor::from_device(device), host));
  CHECK(tests::current_context() == nullptr);
}

TEST_CASE("moving hands the memory on") {
  const HostTensor host = HostTensor::random_normal(DType::f32, {64}, 13);
  DeviceTensor first = host.to_device();
  void* const memory = first.data();
  DeviceTensor second = std::move(first);
  CHECK(second.data() == memory);
  DeviceTensor third = DeviceTensor::allocate(DType::f32, {8});
  third = std::move(second);
  CHECK(third.data() == memory);
  CHECK(same_bytes(HostTensor::from_device(third), host));
}

TEST_CASE("a tensor without elements has no memory and copies nothing") {
  const DeviceTensor empty = DeviceTensor::allocate(DType::bf16, {4, 0, 8});
  CHECK(empty.data() == nullptr);
  CHECK(empty.size_bytes() == 0);
  empty.copy_to_host(nullptr);
  CHECK(HostTensor::from_device(empty).element_count() == 0);
}

TEST_CASE("shapes and host memory that make no sense are refused") {
  const auto code = [](auto work) {
    try {
      work();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::io;
  };
  const std::int64_t huge = std::int64_t{1} << 40;
  HostTensor host(DType::f32, {4, 4});
  CHECK(code([] { DeviceTensor::allocate(DType::f32, {4, -1}); }) == ErrorCode::invalid_argument);
  CHECK(code([=] { DeviceTensor::allocate(DType::f32, {huge, huge}); }) == ErrorCode::invalid_argument);
  CHECK(code([=] { DeviceTensor::allocate(DType::f32, {huge}); }) == ErrorCode::driver);
  CHECK(code([&] {
          DeviceTensor::from_host(Tensor(host.data(), DType::f32, {4, 4}, {1, 4}));
        }) == ErrorCode::invalid_argument);
  CHECK(code([] { DeviceTensor::from_host(Tensor(nullptr, DType::f32, {4})); }) == ErrorCode::invalid_argument);
  CHECK(same_bytes(HostTensor::from_device(host.to_device()), host));
}
