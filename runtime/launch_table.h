// SPDX-License-Identifier: Apache-2.0
// From a call's plain-data key to its prepared kernel. Readers take no lock; entries are only ever added.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "flashjit/problem.h"

namespace flashjit::runtime {

struct LaunchRecord;

// What decides the kernel of a call, packed into words.
class LaunchKey {
 public:
  LaunchKey() = default;
  // With a variant the range does not matter.
  LaunchKey(int device, const Problem& problem, LengthRange range, const Variant* variant);

  std::size_t hash() const noexcept;
  friend bool operator==(const LaunchKey&, const LaunchKey&) = default;

 private:
  void add(const MmaVariant& variant) noexcept;
  void add(const HopperVariant& variant) noexcept;

  std::array<std::uint64_t, 3> words_{};
};

class LaunchTable {
 public:
  LaunchTable();

  // Null when there is none.
  const LaunchRecord* find(const LaunchKey& key) const noexcept;
  // Keeps the first record of a key. The record must outlive the table's last reader.
  void insert(const LaunchKey& key, const LaunchRecord& record);

 private:
  struct Slot {
    LaunchKey key;  // written before the record is published, never after
    std::atomic<const LaunchRecord*> record{nullptr};
  };
  struct Slots {
    explicit Slots(std::size_t count) : slots(count) {}
    std::vector<Slot> slots;  // a power of two, at most half full
    std::size_t used = 0;
  };

  static void place(Slots& slots, const LaunchKey& key, const LaunchRecord* record);

  std::atomic<const Slots*> current_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slots>> generations_;  // readers may still be in an older one
};

}  // namespace flashjit::runtime
