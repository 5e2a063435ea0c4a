// SPDX-License-Identifier: Apache-2.0
#include "cache/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "cache/bytes.h"

namespace flashjit::cache {
namespace {

Digest digest_from(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

std::string Digest::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Digest digest_of(std::string_view bytes) { return digest_from(XXH3_128bits(bytes.data(), bytes.size())); }

struct Hasher::State {
  XXH3_state_t hash;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }

Hasher::~Hasher() = default;

void Hasher::add_with_length(std::string_view bytes) {
  std::string length;
  append(length, std::uint64_t{bytes.size()});
  XXH3_128bits_update(&state_->hash, length.data(), length.size());
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

Hasher& Hasher::add(std::string_view label, std::string_view bytes) {
  add_with_length(label);
  add_with_length(bytes);
  return *this;
}

Digest Hasher::finish() const { return digest_from(XXH3_128bits_digest(&state_->hash)); }

}  // namespace flashjit::cache
