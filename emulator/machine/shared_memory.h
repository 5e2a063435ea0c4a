// SPDX-License-Identifier: Apache-2.0
// The shared memory of a block: its bytes, which of them were written, and who accessed them last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/memory/knowledge.h"
#include "flashjit/emulator.h"

namespace flashjit::emulator {

class Warp;

// The first kilobyte belongs to the system, as on sm_90: no address of a variable is 0.
inline constexpr std::uint32_t kFirstSharedOffset = 1024;

enum class Proxy { generic, async };

// Who accesses, and what it knows of the others. Accesses of copies and of wgmma bear the agent that tells their end.
struct Accessor {
  Warp& issuer;  // findings name its present instruction
  Agent agent;
  Clock clock;
  const Knowledge& knowledge;
  Proxy proxy = Proxy::generic;
  bool atomic = false;  // reads and writes; atomic accesses do not race with each other
};

class SharedMemory {
 public:
  explicit SharedMemory(std::uint32_t bytes);

  std::uint32_t end() const { return end_; }  // offsets are from kFirstSharedOffset to here
  bool contains(std::uint64_t offset, std::uint64_t bytes) const {
    return offset >= kFirstSharedOffset && offset <= end_ && bytes <= end_ - offset;
  }
  std::byte* at(std::uint32_t offset) { return bytes_.data() + offset; }
  const std::byte* at(std::uint32_t offset) const { return bytes_.data() + offset; }

  // Records an access of bytes that lie inside, and reports races, missing fences and reads of what nobody wrote. They
  // look at the order of accesses only: the bytes may be moved before or after.
  void record_read(const Accessor& accessor, std::uint32_t offset, std::uint32_t bytes);
  void record_write(const Accessor& accessor, std::uint32_t offset, std::uint32_t bytes);
  // The bytes have no contents any more.
  void forget(std::uint32_t offset, std::uint32_t bytes);
  // Called with offset and size of every write that is recorded.
  void on_write(std::function<void(std::uint32_t, std::uint32_t)> observer) { observer_ = std::move(observer); }

 private:
  static constexpr std::uint32_t kGranule = 4;  // bytes that are tracked together
  static constexpr std::uint8_t kAllBytes = (1 << kGranule) - 1;

  struct Granule {
    Agent writer = 0;
    std::uint8_t written = 0;  // a bit for each byte
    Proxy proxy = Proxy::generic;
    bool atomic = false;
    Clock clock = 0;
    std::uint32_t instruction = 0;
  };
  // The reads of one agent since ever: later ones replace earlier ones.
  struct Reader {
    std::vector<Clock> clocks;  // by granule
    std::vector<std::uint32_t> instructions;
  };
  // False after a report: not all of the wanted bytes of the granule have been written.
  bool check_written(const Accessor& accessor, const Granule& granule, std::uint8_t wanted, std::uint32_t offset);
  void check_against_write(const Accessor& accessor, const Granule& granule, std::uint32_t offset, bool writes);
  void check_against_reads(const Accessor& accessor, std::uint32_t first, std::uint32_t last);

  std::uint32_t end_;
  std::function<void(std::uint32_t, std::uint32_t)> observer_;
  std::vector<std::byte> bytes_;
  std::vector<Granule> granules_;
  std::vector<std::unique_ptr<Reader>> readers_;  // by agent
};

}  // namespace flashjit::emulator
