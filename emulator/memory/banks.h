// SPDX-License-Identifier: Apache-2.0
// Bank conflicts of shared memory: 32 banks, each of which gives one word of 4 bytes to a wavefront.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flashjit::emulator {

inline constexpr std::uint32_t kBanks = 32;
inline constexpr std::uint32_t kBankBytes = 4;
inline constexpr std::uint32_t kNoAccess = UINT32_MAX;  // the offset of a lane that accesses nothing

// The most words that one bank has to give to lanes that access `words` words each.
inline int count_wavefronts(const std::uint32_t* offsets, int count, std::uint32_t words) {
  std::uint32_t wanted[kBanks][kBanks];
  int of_bank[kBanks] = {};
  int most = 0;
  for (int i = 0; i < count; ++i) {
    if (offsets[i] == kNoAccess) continue;
    const std::uint32_t first = offsets[i] / kBankBytes;
    for (std::uint32_t word = first; word < first + words; ++word) {
      const std::uint32_t bank = word % kBanks;
      std::uint32_t* const end = wanted[bank] + of_bank[bank];
      if (std::find(wanted[bank], end, word) != end) continue;
      *end = word;
      most = std::max(most, ++of_bank[bank]);
    }
  }
  return most;
}

// Wavefronts beyond those that the bytes need: lanes that access 8 or 16 bytes each take turns, 16 or 8 at a time.
// Offsets are in bytes, in the order of the lanes.
inline int bank_conflicts(const std::uint32_t* offsets, int count, int bytes_each) {
  const std::uint32_t words = std::max(static_cast<std::uint32_t>(bytes_each) / kBankBytes, 1u);
  const int lanes_of_phase = static_cast<int>(kBanks / words);
  int conflicts = 0;
  for (int begin = 0; begin < count; begin += lanes_of_phase) {
    const int lanes = std::min(lanes_of_phase, count - begin);
    std::uint32_t lowest = kNoAccess, highest = 0;
    for (int i = begin; i < begin + lanes; ++i) {
      lowest = std::min(lowest, offsets[i]);
      highest = std::max(highest, offsets[i] == kNoAccess ? 0 : offsets[i]);
    }
    // Words that follow each other lie in banks of their own.
    if (lowest == kNoAccess || highest / kBankBytes + words - lowest / kBankBytes <= kBanks) continue;
    conflicts += count_wavefronts(offsets + begin, lanes, words) - 1;
  }
  return conflicts;
}

}  // namespace flashjit::emulator
