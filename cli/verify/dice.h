// SPDX-License-Identifier: Apache-2.0
// Random choices by a seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace flashjit::cli {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed) {}

  std::uint64_t bits() { return generator_(); }
  std::int64_t from_to(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(generator_);
  }
  bool one_in(std::int64_t many) { return from_to(1, many) == 1; }
  template <typename T>
  T one_of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(from_to(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace flashjit::cli
