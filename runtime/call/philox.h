// SPDX-License-Identifier: Apache-2.0
// Random bits of a counter: Philox4x32 with seven rounds (Salmon et al. 2011), as templates/attention/philox.cuh has
// it.
#pragma once

#include <array>
#include <cstdint>

namespace flashjit::runtime {

using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr std::uint32_t lower_word(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t upper_word(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x >> 32); }

inline PhiloxWords philox(PhiloxWords counter, std::array<std::uint32_t, 2> key) noexcept {
  constexpr int kRounds = 7;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t first = std::uint64_t{0xd2511f53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {upper_word(second) ^ counter[1] ^ key[0], lower_word(second), upper_word(first) ^ counter[3] ^ key[1],
               lower_word(first)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

}  // namespace flashjit::runtime
