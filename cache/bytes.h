// SPDX-License-Identifier: Apache-2.0
// What the formats of FORMAT.md are made of: little-endian integers and checksums.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cache/digest.h"

namespace flashjit::cache {

template <typename Integer>
void append(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

// The caller has checked that bytes hold an Integer at this offset.
template <typename Integer>
Integer integer_at(std::string_view bytes, std::size_t offset) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<Integer>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  }
  return value;
}

inline constexpr std::size_t kChecksumBytes = 16;

inline std::string checksum_of(std::string_view bytes) {
  const Digest digest = digest_of(bytes);
  std::string checksum;
  append(checksum, digest.low);
  append(checksum, digest.high);
  return checksum;
}

}  // namespace flashjit::cache
