// SPDX-License-Identifier: Apache-2.0
// Small kernels that copy from global memory, and the pieces of PTX that their asynchronous copies have in common.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/small_kernel.h"

namespace flashjit::test {

using Bytes = std::vector<std::uint8_t>;

// 16-byte aligned, and what no result has by chance.
struct Buffer {
  explicit Buffer(std::size_t bytes, unsigned seed = 1) : storage(bytes / 16 + 1), size(bytes) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < bytes; ++i) data()[i] = static_cast<std::uint8_t>(random());
  }
  std::uint8_t* data() { return storage.front().bytes; }
  Bytes bytes() { return Bytes(data(), data() + size); }

  struct alignas(16) Unit {
    std::uint8_t bytes[16];
  };
  std::vector<Unit> storage;
  std::size_t size;
};

// %source is the address of `bytes` bytes.
struct FromSource {
  std::string body;
  int threads = 32;
  unsigned cluster = 1;
  std::size_t bytes = 4096;

  Runs run(Buffer& source) const {
    const SmallKernel kernel{
        .body = ".reg .b64 %source;\nld.param.u64 %source, [source];\n" + body,
        .threads = threads,
        .cluster = cluster,
        .shared_bytes = 8192,
        .parameters = ", .param .u64 source",
    };
    emulator::Memory memory;
    memory.add("source", source.data(), bytes);
    return run_schedules(kernel, memory, kSchedules, static_cast<void*>(source.data()));
  }
  void check_right(const Words& expected) const {
    Buffer source(4096);
    const Runs runs = run(source);
    INFO(runs.text());
    CHECK(runs.findings.empty());
    for (const Words& output : runs.outputs) REQUIRE(output == expected);
  }
  void check_found(emulator::FindingKind kind, const std::string& text = "") const {
    Buffer source(4096);
    const Runs runs = run(source);
    INFO("expected ", std::string(emulator::to_string(kind)), ": ", text, "\n", runs.text());
    CHECK(runs.has(kind, text));
  }
};

inline Words source_words(int first, int count) {
  Buffer source(4096);
  Words all(static_cast<std::size_t>(count));
  std::memcpy(all.data(), source.data() + 4 * first, 4 * all.size());
  return all;
}

// Words `first` to `first` + 31 of shared memory, one for each lane.
inline std::string output_words(int first = 0) {
  return fmt::format("mad.lo.u32 %r30, %lane, 4, %smem;\nld.shared.b32 %r29, [%r30+{}];\nst.global.b32 [%out], %r29;\n",
                     4 * first);
}

// %p1 holds in the first thread of the block; an mbarrier for `count` arrivals at 0 of shared memory.
inline std::string initialise(int count = 1, const std::string& fence = "@%p1 fence.mbarrier_init.release.cluster;\n") {
  return fmt::format("setp.eq.u32 %p1, %tid, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%smem], {};\n{}bar.sync 0;\n",
                     count, fence);
}

inline std::string expect(int bytes) {
  return fmt::format("@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {};\n", bytes);
}

inline const std::string kCommitBulk = "@%p1 cp.async.bulk.commit_group;\n";
inline const std::string kWaitBulk = "@%p1 cp.async.bulk.wait_group 0;\n";

}  // namespace flashjit::test
