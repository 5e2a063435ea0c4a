// SPDX-License-Identifier: Apache-2.0
#include "cache/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace flashjit::cache {
namespace {

void append_with_length(std::string& buffer, std::string_view bytes) {
  for (int shift = 0; shift < 64; shift += 8) {
    buffer.push_back(static_cast<char>(static_cast<std::uint64_t>(bytes.size()) >> shift));
  }
  buffer.append(bytes);
}

}  // namespace

std::string Digest::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Digest digest_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Hasher& Hasher::add(std::string_view label, std::string_view bytes) {
  append_with_length(buffer_, label);
  append_with_length(buffer_, bytes);
  return *this;
}

Digest Hasher::finish() const { return digest_of(buffer_); }

}  // namespace flashjit::cache
