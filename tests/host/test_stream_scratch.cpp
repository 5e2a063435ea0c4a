// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cuda/stream_scratch.h"

namespace {

using flashjit::Stream;
using flashjit::runtime::StreamScratch;

Stream stream_of(std::uint64_t id) { return reinterpret_cast<Stream>(0x1000 + id); }

// Host memory in the place of a device's, of which it keeps count.
struct Memory {
  StreamScratch::Allocator allocator() {
    return {[this](std::size_t bytes, Stream) {
              if (fails) throw std::runtime_error("full");
              return *in_use.insert(::operator new(bytes)).first;
            },
            [this](void* memory, Stream stream) {
              freed_on.push_back(stream);
              give_back(memory);
            },
            [this](void* memory) { give_back(memory); }};
  }
  void give_back(void* memory) {
    CHECK(in_use.erase(memory) == 1);
    ::operator delete(memory);
  }

  std::set<void*> in_use;
  std::vector<Stream> freed_on;
  bool fails = false;
};

void* memory_of_call(StreamScratch& scratch, std::uint64_t id, std::size_t bytes) {
  return StreamScratch::Loan(scratch, stream_of(id), id, bytes).data();
}

}  // namespace

TEST_CASE("scratch memory of a call is that of the next call on its stream, and of no other stream") {
  Memory memory;
  {
    StreamScratch scratch(memory.allocator());
    void* const first = memory_of_call(scratch, 0, 256);
    CHECK(memory_of_call(scratch, 0, 256) == first);
    CHECK(memory_of_call(scratch, 0, 64) == first);
    CHECK(memory_of_call(scratch, 7, 256) != first);
    CHECK(memory_of_call(scratch, 0, 256) == first);
    CHECK(memory.in_use.size() == 2);
    CHECK(memory.freed_on.empty());
  }
  CHECK(memory.in_use.empty());
}

TEST_CASE("a call that wants more scratch memory gets more, and what its stream had is freed behind its work") {
  Memory memory;
  StreamScratch scratch(memory.allocator());
  memory_of_call(scratch, 3, 256);
  void* const larger = memory_of_call(scratch, 3, 512);
  CHECK(memory.freed_on == std::vector{stream_of(3)});
  CHECK(memory.in_use == std::set{larger});
  CHECK(memory_of_call(scratch, 3, 256) == larger);
}

TEST_CASE("calls on one stream at a time have scratch memory each") {
  Memory memory;
  StreamScratch scratch(memory.allocator());
  {
    const StreamScratch::Loan one(scratch, stream_of(1), 1, 256), other(scratch, stream_of(1), 1, 256);
    CHECK(one.data() != other.data());
  }
  CHECK(memory.in_use.size() == 1);
  CHECK(memory.freed_on == std::vector{stream_of(1)});
}

TEST_CASE("scratch memory is kept for so many streams, and no more than so much of it") {
  Memory memory;
  StreamScratch scratch(memory.allocator());
  for (std::uint64_t id = 0; id <= StreamScratch::kStreams; ++id) memory_of_call(scratch, id, 256);
  CHECK(memory.in_use.size() == StreamScratch::kStreams);
  CHECK(memory.freed_on == std::vector{stream_of(StreamScratch::kStreams)});
  memory_of_call(scratch, 0, StreamScratch::kMostBytes + 1);
  CHECK(memory.in_use.size() == StreamScratch::kStreams);
}

TEST_CASE("a stream for which there was no memory can have some later") {
  Memory memory;
  StreamScratch scratch(memory.allocator());
  memory_of_call(scratch, 1, 256);
  memory.fails = true;
  CHECK_THROWS_AS(memory_of_call(scratch, 1, 512), std::runtime_error);
  CHECK(memory.in_use.empty());
  memory.fails = false;
  void* const again = memory_of_call(scratch, 1, 512);
  CHECK(memory_of_call(scratch, 1, 512) == again);
}

TEST_CASE("threads on one stream and on others never share scratch memory") {
  std::atomic<int> shared{0};
  StreamScratch scratch({[](std::size_t bytes, Stream) { return ::operator new(bytes); },
                         [](void* memory, Stream) { ::operator delete(memory); },
                         [](void* memory) { ::operator delete(memory); }});
  const auto call = [&](std::uint64_t id, int owner) {
    const StreamScratch::Loan loan(scratch, stream_of(id), id, sizeof(int));
    auto& word = *static_cast<volatile int*>(loan.data());
    word = owner;
    for (int i = 0; i < 20; ++i)
      if (word != owner) ++shared;
  };
  std::vector<std::thread> threads;
  for (int owner = 0; owner < 4; ++owner)
    threads.emplace_back([&, owner] {
      for (int i = 0; i < 5000; ++i) call(static_cast<std::uint64_t>(i % 3), owner);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(shared == 0);
}
