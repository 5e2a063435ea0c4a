// SPDX-License-Identifier: Apache-2.0
#include "cache/text.h"

#include <cstddef>

namespace flashjit::cache {
namespace {

// The bytes of the control character that begins here; 0 where none does. U+0080 to U+009F are c2 80 to c2 9f.
std::size_t control_character_at(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x20 || byte == 0x7f) return 1;
  if (byte != 0xc2 || at + 1 == text.size()) return 0;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  return second >= 0x80 && second <= 0x9f ? 2 : 0;
}

}  // namespace

std::string without_control_characters(std::string text, std::string_view kept) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (kept.find(text[at]) != kept.npos) continue;
    if (const std::size_t bytes = control_character_at(text, at); bytes != 0) text.replace(at, bytes, 1, ' ');
  }
  return text;
}

}  // namespace flashjit::cache
