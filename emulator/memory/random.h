// SPDX-License-Identifier: Apache-2.0
// A stream of numbers that depends on nothing but its seed: the same schedule on every machine.
#pragma once

#include <cstdint>

namespace flashjit::emulator {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  // From 0 to count - 1.
  std::uint64_t below(std::uint64_t count) { return next() % count; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace flashjit::emulator
