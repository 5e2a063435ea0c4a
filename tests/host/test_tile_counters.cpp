// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/cuda/tile_counters.h"

namespace {

using flashjit::runtime::TileCounters;

// Host memory in the place of a device's.
class Memory {
 public:
  TileCounters::Allocate allocate() {
    return [this](std::size_t count) {
      blocks_.push_back(std::make_unique<std::uint32_t[]>(count));
      counts_.push_back(count);
      return blocks_.back().get();
    };
  }
  bool holds(const std::uint32_t* counter) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (counter >= blocks_[i].get() && counter < blocks_[i].get() + counts_[i]) return true;
    }
    return false;
  }
  std::size_t blocks() const { return blocks_.size(); }

 private:
  std::vector<std::unique_ptr<std::uint32_t[]>> blocks_;
  std::vector<std::size_t> counts_;
};

}  // namespace

TEST_CASE("launches go round a ring of counters, without another allocation") {
  Memory memory;
  TileCounters counters(memory.allocate());
  std::set<std::uint32_t*> seen;
  std::uint32_t* const first = counters.for_launch();
  seen.insert(first);
  for (std::uint32_t i = 1; i < TileCounters::kRingSize; ++i) seen.insert(counters.for_launch());
  CHECK(seen.size() == TileCounters::kRingSize);
  CHECK(std::all_of(seen.begin(), seen.end(), [&](const std::uint32_t* counter) { return memory.holds(counter); }));
  CHECK(counters.for_launch() == first);
  CHECK(memory.blocks() == 1);
}

TEST_CASE("a counter of a graph is given to nobody else, whatever is launched meanwhile") {
  Memory memory;
  TileCounters counters(memory.allocate());
  std::set<std::uint32_t*> captured;
  constexpr std::size_t kGraphs = 2 * TileCounters::kChunkSize + 1;
  for (std::size_t i = 0; i < kGraphs; ++i) captured.insert(counters.for_graph());
  CHECK(captured.size() == kGraphs);
  CHECK(memory.blocks() == 1 + 3);
  for (std::uint32_t i = 0; i < 2 * TileCounters::kRingSize; ++i) {
    if (captured.count(counters.for_launch()) != 0) FAIL("a captured counter was given to a launch");
  }
  CHECK(std::all_of(captured.begin(), captured.end(), [&](const auto* counter) { return memory.holds(counter); }));
}

TEST_CASE("threads that launch and capture at the same time get counters of their own") {
  Memory memory;
  TileCounters counters(memory.allocate());
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::vector<std::uint32_t*>> taken(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) mine.push_back(i % 2 == 0 ? counters.for_launch() : counters.for_graph());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint32_t*> all;
  for (const auto& mine : taken) all.insert(mine.begin(), mine.end());
  CHECK(all.size() == kThreads * kEach);
}

TEST_CASE("after a failed allocation the next graph tries again") {
  Memory memory;
  int allocations = 0;
  TileCounters counters([&](std::size_t count) {
    if (++allocations == 2) throw std::runtime_error("out of memory");
    return memory.allocate()(count);
  });
  CHECK_THROWS_AS(counters.for_graph(), std::runtime_error);
  CHECK(memory.holds(counters.for_graph()));
}
