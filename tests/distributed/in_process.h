// SPDX-License-Identifier: Apache-2.0
// Ranks as threads over host memory, behind the interface that NCCL is behind.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distributed/rehearsal.h"
#include "flashjit/distributed.h"
#include "tests/support/ranks.h"

namespace flashjit::tests {

// What messages go through. A fault is planted by what changes them on their way. Those by which ranks agree before a
// first call go unchanged, and do not count.
class World {
 public:
  using Bytes = std::vector<unsigned char>;
  using OnTheWay = std::function<void(int from, int to, Bytes& bytes)>;

  World(int ranks, std::chrono::milliseconds timeout) : ranks_(ranks), timeout_(timeout) {}

  int ranks() const noexcept { return ranks_; }
  void change_messages(OnTheWay change) { change_ = std::move(change); }
  // Of all messages so far, by the rank that received them.
  std::uint64_t bytes_to(int rank) {
    const std::lock_guard lock(mutex_);
    return bytes_to_[rank];
  }

  // Of messages by which ranks agree on whether some refuse a call; they are none of those above.
  int agreements() {
    const std::lock_guard lock(mutex_);
    return agreements_;
  }

  void send(int from, int to, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    if (bytes.size() == distributed::kRefusalBytes) {
      ++agreements_;
    } else {
      bytes_to_[to] += bytes.size();
      if (change_) change_(from, to, bytes);
    }
    messages_[{from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }
  Bytes receive(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<Bytes>& messages = messages_[{from, to}];
    changed_.wait_for(lock, timeout_, [&] { return !messages.empty() || !failure_.empty(); });
    if (messages.empty() && failure_.empty()) fail_locked("rank " + std::to_string(from) + " was not heard of in time");
    throw_if_failed();
    Bytes bytes = std::move(messages.front());
    messages.pop_front();
    return bytes;
  }
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    fail_locked(why);
  }
  void check() {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
  }
  bool is_empty() {
    const std::lock_guard lock(mutex_);
    for (const auto& [ranks, messages] : messages_)
      if (!messages.empty()) return false;
    return true;
  }

 private:
  void fail_locked(const std::string& why) {
    if (failure_.empty()) failure_ = why;
    changed_.notify_all();
  }
  void throw_if_failed() const {
    if (!failure_.empty()) throw Error(ErrorCode::communication, "group: " + failure_);
  }

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Bytes>> messages_;
  std::map<int, std::uint64_t> bytes_to_;
  int agreements_ = 0;
  std::string failure_;
  OnTheWay change_;
};

class InProcess : public distributed::Transport {
 public:
  InProcess(World& world, int rank) : world_(world), rank_(rank) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return world_.ranks(); }
  int device() const noexcept override { return kHostMemory; }
  std::uint64_t start(const distributed::Exchange& exchange, Stream) override {
    for (const distributed::Message& message : exchange.sends) {
      const auto* first = static_cast<const unsigned char*>(message.memory.data);
      world_.send(rank_, message.peer, World::Bytes(first, first + size_of(message)));
    }
    started_.push_back(exchange.receives);
    return first_ + started_.size() - 1;
  }
  void finish(std::uint64_t started, Stream) override {
    if (started != first_ || started_.empty()) throw std::logic_error("exchanges must be finished in their order");
    for (const distributed::Message& message : started_.front()) {
      const World::Bytes bytes = world_.receive(message.peer, rank_);
      if (bytes.size() != size_of(message)) world_.fail("ranks disagree about the size of a message");
      world_.check();
      std::memcpy(message.memory.data, bytes.data(), bytes.size());
    }
    started_.pop_front();
    ++first_;
  }
  void wait() override { world_.check(); }
  void abort() noexcept override { world_.fail("rank " + std::to_string(rank_) + " gave up"); }

 private:
  static std::size_t size_of(const distributed::Message& message) {
    std::size_t bytes = flashjit::size_of(message.memory.dtype);
    for (const std::int64_t size : message.memory.shape) bytes *= static_cast<std::size_t>(size);
    return bytes;
  }

  World& world_;
  const int rank_;
  std::deque<std::vector<distributed::Message>> started_;
  std::uint64_t first_ = 0;
};

inline std::vector<std::exception_ptr> on_ranks(World& world, const std::function<void(distributed::Group&)>& work) {
  return on_ranks(
      world.ranks(), [&](int rank) { return distributed::Group(std::make_unique<InProcess>(world, rank)); }, work);
}

}  // namespace flashjit::tests
