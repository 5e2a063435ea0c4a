// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/launch_table.h"

#include <algorithm>

#include "generator/family.h"
#include "generator/features.h"

namespace flashjit::runtime {
namespace {

constexpr std::size_t kFirstSize = 64;

// Appends fields to a word. A value that is too large or negative becomes the largest one, which no legal variant has:
// so it never meets the key of another value.
class Packer {
 public:
  Packer& add(std::int64_t value, int bits) {
    const std::int64_t largest = (std::int64_t{1} << bits) - 1;
    const bool fits = value >= 0 && value < largest;
    word_ = word_ << bits | static_cast<std::uint64_t>(fits ? value : largest);
    return *this;
  }
  template <typename Enum>
  Packer& add_enum(Enum value) {
    return add(static_cast<std::int64_t>(value), 8);
  }
  std::uint64_t word() const noexcept { return word_; }

 private:
  std::uint64_t word_ = 0;
};

// What a variant is chosen by. From kFirstFamily on it is given: each family is a kind of its own.
enum Kind { kByBucket, kWithoutTensorMaps, kFirstFamily };

// The first word of every key, with room for eight bits more. The features and users' functions have the next two.
Packer pack(int device, const Problem& problem, int kind) {
  Packer packer;
  packer.add(device, 10).add(problem.head_dim, 16).add(problem.head_dim_v, 16).add_enum(problem.dtype).add(kind, 3);
  return packer;
}

}  // namespace

LaunchKey::LaunchKey(int device, const Problem& problem, const Variant& variant)
    : words_{pack(device, problem, kFirstFamily + static_cast<int>(variant.index())).word(),
             generator::feature_bits(problem), generator::function_bits(problem)} {
  const auto of_variant = std::visit([](const auto& of_family) { return generator::key_of(of_family); }, variant);
  std::copy(of_variant.begin(), of_variant.end(), words_.begin() + 3);
}

LaunchKey::LaunchKey(int device, const Problem& problem, const ShapeBucket& bucket)
    : words_{pack(device, problem, kByBucket)
                 .add(static_cast<int>(bucket.queries), 2)
                 .add(static_cast<int>(bucket.keys), 3)
                 .add(static_cast<int>(bucket.work), 3)
                 .word(),
             generator::feature_bits(problem), generator::function_bits(problem)} {}

LaunchKey::LaunchKey(int device, const Problem& problem, WithoutTensorMaps)
    : words_{pack(device, problem, kWithoutTensorMaps).word(), generator::feature_bits(problem),
             generator::function_bits(problem)} {}

std::size_t LaunchKey::hash() const noexcept {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words_) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

LaunchTable::LaunchTable() {
  generations_.push_back(std::make_unique<Slots>(kFirstSize));
  current_.store(generations_.back().get(), std::memory_order_release);
}

// Looks at each record once: a slot that is free now may have another key a moment later.
const LaunchRecord* LaunchTable::find(const LaunchKey& key) const noexcept {
  const std::vector<Slot>& slots = current_.load(std::memory_order_acquire)->slots;
  const std::size_t mask = slots.size() - 1;
  for (std::size_t i = key.hash() & mask;; i = (i + 1) & mask) {
    const LaunchRecord* record = slots[i].record.load(std::memory_order_acquire);
    if (!record || slots[i].key == key) return record;
  }
}

const LaunchRecord& LaunchTable::insert(const LaunchKey& key, const LaunchRecord& record) {
  const std::lock_guard lock(mutex_);
  if (const LaunchRecord* first = find(key)) return *first;
  add(key, record);
  return record;
}

void LaunchTable::replace(const LaunchKey& key, const LaunchRecord& record) {
  const std::lock_guard lock(mutex_);
  if (Slot& slot = slot_of(*generations_.back(), key); slot.record.load(std::memory_order_relaxed))
    slot.record.store(&record, std::memory_order_release);
  else
    add(key, record);
}

void LaunchTable::add(const LaunchKey& key, const LaunchRecord& record) {
  Slots* slots = generations_.back().get();
  if (2 * (slots->used + 1) > slots->slots.size()) {
    auto larger = std::make_unique<Slots>(2 * slots->slots.size());
    for (const Slot& slot : slots->slots) {
      if (const LaunchRecord* old = slot.record.load(std::memory_order_relaxed)) place(*larger, slot.key, old);
    }
    slots = larger.get();
    generations_.push_back(std::move(larger));
  }
  place(*slots, key, &record);
  current_.store(slots, std::memory_order_release);
}

LaunchTable::Slot& LaunchTable::slot_of(Slots& slots, const LaunchKey& key) noexcept {
  const std::size_t mask = slots.slots.size() - 1;
  std::size_t i = key.hash() & mask;
  while (slots.slots[i].record.load(std::memory_order_relaxed) && !(slots.slots[i].key == key)) i = (i + 1) & mask;
  return slots.slots[i];
}

void LaunchTable::place(Slots& slots, const LaunchKey& key, const LaunchRecord* record) {
  Slot& slot = slot_of(slots, key);
  slot.key = key;
  slot.record.store(record, std::memory_order_release);
  ++slots.used;
}

}  // namespace flashjit::runtime
