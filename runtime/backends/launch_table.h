// SPDX-License-Identifier: Apache-2.0
// From a call's plain-data key to its prepared kernel. Readers take no lock; entries are never removed.
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

// A call whose tensors TMA cannot describe, on an architecture where others may be given such a kernel.
struct WithoutTensorMaps {};

// What decides the kernel of a call, packed into words: the variant that it names, or what the library chooses one by.
class LaunchKey {
 public:
  LaunchKey() = default;
  LaunchKey(int device, const Problem& problem, const Variant& variant);
  LaunchKey(int device, const Problem& problem, const ShapeBucket& bucket);
  LaunchKey(int device, const Problem& problem, WithoutTensorMaps);

  std::size_t hash() const noexcept;
  friend bool operator==(const LaunchKey&, const LaunchKey&) = default;

 private:
  std::array<std::uint64_t, 5> words_{};
};

class LaunchTable {
 public:
  LaunchTable();

  // Null when there is none.
  const LaunchRecord* find(const LaunchKey& key) const noexcept;
  // Records must outlive the table's last reader. insert() keeps the first record of a key, and gives it.
  const LaunchRecord& insert(const LaunchKey& key, const LaunchRecord& record);
  // Readers that have found an older record of the key go on with it.
  void replace(const LaunchKey& key, const LaunchRecord& record);

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

  // For writers, under the lock: where the key is, or else the free slot where it would be.
  static Slot& slot_of(Slots& slots, const LaunchKey& key) noexcept;
  static void place(Slots& slots, const LaunchKey& key, const LaunchRecord* record);
  void add(const LaunchKey& key, const LaunchRecord& record);

  std::atomic<const Slots*> current_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slots>> generations_;  // readers may still be in an older one
};

}  // namespace flashjit::runtime
