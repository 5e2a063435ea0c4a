// SPDX-License-Identifier: Apache-2.0
// A 128-bit hash over named parts (XXH3-128).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace flashjit::cache {

struct Digest {
  std::uint64_t high = 0, low = 0;
  std::string hex() const;  // 32 lower-case digits
  friend auto operator<=>(const Digest&, const Digest&) = default;
};

Digest digest_of(std::string_view bytes);

// Hashes parts with their labels and lengths, so that ("a", "bc") and ("ab", "c") differ.
// Copies nothing: a source of a hundred kilobytes is hashed in less time than copied.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher& add(std::string_view label, std::string_view bytes);
  Digest finish() const;

 private:
  struct State;
  void add_with_length(std::string_view bytes);

  std::unique_ptr<State> state_;
};

}  // namespace flashjit::cache
