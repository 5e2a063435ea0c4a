// SPDX-License-Identifier: Apache-2.0
// The transport over NCCL on machines without a GPU: which functions it calls, in which order, and what it does when a
// rank is lost. That NCCL does what is asked of it, tests/distributed/test_over_nccl.cpp tests where there are GPUs.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/distributed.h"
#include "tests/nccl_transport/stand_ins.h"
#include "tests/support/error_code.h"
#include "tests/support/ranks.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;

std::vector<std::exception_ptr> on_ranks(int ranks, std::chrono::milliseconds timeout,
                                         const std::function<void(Group&)>& work, int present = -1) {
  const UniqueId id = make_unique_id();
  return tests::on_ranks(
      present < 0 ? ranks : present,
      [&](int rank) {
        return Group::from_unique_id(id, rank, ranks, {rank, timeout});
      },
      work);
}

std::string message_of(const std::exception_ptr& thrown) {
  REQUIRE(thrown);
  std::string message;
  CHECK(tests::code_of([&] { std::rethrow_exception(thrown); }, &message) == ErrorCode::communication);
  return message;
}

HostTensor filled(double value) {
  HostTensor tensor(DType::f32, {4});
  for (int i = 0; i < 4; ++i) store_element(tensor.data(), DType::f32, i, value + i);
  return tensor;
}

// Of kernels: each rank has one, as each GPU has. To the stand-in it is a name.
Stream stream_of(const Group& group) { return reinterpret_cast<Stream>(static_cast<std::uintptr_t>(group.rank() + 1)); }

// Each rank to the next one and from the one before.
Exchange round(const Group& group, HostTensor& sent, HostTensor& received) {
  const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
  return {{{next, sent.view()}}, {{before, received.view()}}};
}

}  // namespace

TEST_CASE("exchanges arrive in their order, and a group that ends destroys its communicator") {
  stand_in_reset();
  std::atomic<int> right = 0;
  const auto thrown = on_ranks(3, std::chrono::seconds(30), [&](Group& group) {
    CHECK((group.size() == 3 && group.transport().device() == group.rank()));
    HostTensor first = filled(10.0 * group.rank()), second = filled(100 + group.rank()), a(DType::f32, {4}), b = a;
    const std::uint64_t one = group.transport().start(round(group, first, a), stream_of(group)),
                        two = group.transport().start(round(group, second, b), stream_of(group));
    group.transport().finish(one, stream_of(group));
    group.transport().finish(two, stream_of(group));
    group.wait();
    const int before = (group.rank() + 2) % 3;
    right +=
        a.to_doubles() == filled(10.0 * before).to_doubles() && b.to_doubles() == filled(100 + before).to_doubles();
  });
  for (const std::exception_ptr& error : thrown) CHECK_FALSE(error);
  CHECK(right == 3);
  CHECK((stand_in_destroyed() == 3 && stand_in_aborts() == 0 && stand_in_open_groups() == 0));
}

TEST_CASE("exchanges of each rank go before kernels") {
  stand_in_reset();
  const int before = stand_in_urgent_streams();
  for (const std::exception_ptr& thrown : on_ranks(3, std::chrono::seconds(20), [](Group&) {})) CHECK_FALSE(thrown);
  CHECK(stand_in_urgent_streams() == before + 3);
}

TEST_CASE("kernels behind an exchange begin after it, and do not wait for one that came before and still runs") {
  stand_in_reset();
  std::atomic<bool> is_looked_at = false;
  const auto thrown = on_ranks(2, std::chrono::seconds(30), [&](Group& group) {
    Transport& transport = group.transport();
    HostTensor sent = filled(1), first(DType::f32, {4}), second = first;
    std::atomic<int> begun = 0;
    std::function<bool()> kernel = [&] { return ++begun > 0; };
    const Stream kernels = stream_of(group),
                 others = reinterpret_cast<Stream>(static_cast<std::uintptr_t>(group.rank() + 16));
    while (group.rank() == 1 && !is_looked_at) std::this_thread::yield();
    const std::uint64_t one = transport.start(round(group, sent, first), kernels);
    const auto kernels_begin = [&] {
      const int before = begun;
      const std::uint64_t next = transport.start(round(group, sent, second), kernels);
      stand_in_enqueue(kernels, &kernel);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watchdog has streams go on
      transport.finish(next, others);
      return begun > before;
    };
    const bool beside_unfinished = kernels_begin();
    transport.finish(one, others);
    const bool behind_finished = kernels_begin();  // of which the exchange itself begins once rank 1 has come
    if (group.rank() == 0) {
      CHECK((beside_unfinished && !behind_finished));
      is_looked_at = true;
    }
    while (begun < 2) std::this_thread::yield();
    group.wait();
  });
  for (const std::exception_ptr& error : thrown) CHECK_FALSE(error);
}

TEST_CASE("a rank that does not come to the group is an Error in time") {
  stand_in_reset();
  const auto thrown = on_ranks(
      2, std::chrono::milliseconds(200), [](Group&) {}, 1);
  CHECK(message_of(thrown[0]) == "ncclCommInitRankConfig: all ranks must do their share within 200 ms, did not");
  CHECK(stand_in_aborts() == 1);
}

TEST_CASE("a rank that is lost: the watchdog aborts, threads that wait go on, and every further call throws") {
  stand_in_reset();
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = on_ranks(2, std::chrono::milliseconds(300), [](Group& group) {
    HostTensor sent = filled(1), received(DType::f32, {4});
    if (group.rank() == 1) stand_in_lose_rank(1);
    const std::uint64_t started = group.transport().start(round(group, sent, received), stream_of(group));
    group.transport().finish(started, stream_of(group));
    std::string message;
    CHECK(tests::code_of([&] { group.wait(); }, &message) == ErrorCode::communication);
    CHECK(message == "group: a rank was not heard of for 300 ms");
    CHECK(tests::code_of([&] { group.transport().start({}, stream_of(group)); }) == ErrorCode::communication);
    group.wait();
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  CHECK(message_of(thrown[0]) == "group: a rank was not heard of for 300 ms");
  CHECK((stand_in_aborts() == 2 && stand_in_destroyed() == 0));
}

TEST_CASE("a message that NCCL refuses ends its group, and the communicator with it") {
  stand_in_reset();
  const auto thrown = on_ranks(2, std::chrono::seconds(30), [](Group& group) {
    HostTensor sent = filled(1);
    group.transport().start({{{group.rank(), sent.view()}}, {}}, stream_of(group));
  });
  for (const std::exception_ptr& error : thrown)
    CHECK(message_of(error) == "ncclSend or ncclRecv failed: an error of the stand-in");
  CHECK((stand_in_open_groups() == 0 && stand_in_aborts() == 2));
}

TEST_CASE("a capture of the application's does not end a group, nor the other way around") {
  stand_in_reset();
  stand_in_capture(true);
  const auto thrown = on_ranks(2, std::chrono::seconds(30), [](Group& group) {
    HostTensor sent = filled(1), received(DType::f32, {4});
    const std::uint64_t started = group.transport().start(round(group, sent, received), stream_of(group));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the watchdog looks meanwhile
    group.transport().finish(started, stream_of(group));
    group.wait();
  });
  stand_in_capture(false);
  for (const std::exception_ptr& error : thrown) CHECK_FALSE(error);
  CHECK(stand_in_aborts() == 0);
}

TEST_CASE("a rank that gives up cannot go on, and one whose exchange is left unfinished ends") {
  stand_in_reset();
  HostTensor sent[] = {filled(1), filled(2)}, received[] = {filled(0), filled(0)};  // outlive what is left unfinished
  const auto thrown = on_ranks(2, std::chrono::milliseconds(300), [&](Group& group) {
    const int rank = group.rank();
    if (rank == 1) group.transport().abort();
    group.transport().start(round(group, sent[rank], received[rank]), stream_of(group));
  });
  CHECK_FALSE(thrown[0]);  // it did not look, and its destructor did not hang
  CHECK(message_of(thrown[1]) == "group: rank 1 gave up");
}
