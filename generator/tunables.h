// SPDX-License-Identifier: Apache-2.0
// The tunables of a kernel as a table: one row each, in the order of the variant's fields. What a variant is spelled
// like, how it is read, ordered and checked, and what of it the source is told, follows from the rows.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "generator/source_parts.h"

namespace flashjit::generator {

template <class Enum>
struct Word {
  Enum value;
  std::string_view text;            // in a spelling
  std::string_view in_source = {};  // as the value of a constant of Config, where there is one
};

template <class Words, class Enum>
std::string_view spell(const Words& words, Enum value) {
  for (const auto& word : words)
    if (word.value == value) return word.text;
  return "?";
}

// The line that says why a variant is not legal.
template <class Was>
std::string must(std::string_view what, std::string_view required, const Was& was) {
  return fmt::format("variant: {} must be {}, was {}", what, required, was);
}

// "kv64" into 64. False, and the value as before, for a part that is none of these letters and a number.
bool read_number(std::string_view letters, std::string_view part, int& value);

// Two words that a variant is looked up by. What is appended and does not fit counts as the largest value of its bits,
// which no legal variant has: so it never meets the key of another value.
class VariantKey {
 public:
  using Words = std::array<std::uint64_t, 2>;
  static constexpr int kMostBits = 116;  // no row lies in both words

  void append(std::int64_t value, int bits) noexcept {
    if (used_ + bits > 64) ++at_, used_ = 0;
    const std::int64_t largest = (std::int64_t{1} << bits) - 1;
    words_[at_] = words_[at_] << bits | static_cast<std::uint64_t>(value >= 0 && value < largest ? value : largest);
    used_ += bits;
  }
  const Words& words() const noexcept { return words_; }

 private:
  Words words_{};
  std::size_t at_ = 0;
  int used_ = 0;  // bits of the present word
};

// A number behind its letters: "kv64".
template <class Variant>
struct Number {
  static constexpr int kKeyBits = 12;

  int Variant::*field;
  std::string_view name;              // in messages
  std::string_view letters;           // in a spelling
  std::string_view constant;          // of Config; empty where the source does not need it
  int first = 0, last = 0, step = 1;  // what it may be; a last of 0: the family has a rule of its own

  std::string spelling(const Variant& variant) const { return fmt::format("{}{}", letters, variant.*field); }
  bool read(std::string_view part, Variant& variant) const { return read_number(letters, part, variant.*field); }
  void add_to(ConfigText& config, const Variant& variant) const {
    if (!constant.empty()) config.add("int", constant, variant.*field);
  }
  void add_to(VariantKey& key, const Variant& variant) const noexcept { key.append(variant.*field, kKeyBits); }
  std::string why_illegal(const Variant& variant) const {
    const int value = variant.*field;
    if (last == 0 || (value >= first && value <= last && (value - first) % step == 0)) return {};
    return must(name, range(), value);
  }

 private:
  std::string range() const {
    if (first + step == last) return fmt::format("{} or {}", first, last);
    return step == 1 ? fmt::format("{} to {}", first, last)
                     : fmt::format("a multiple of {} from {} to {}", step, first, last);
  }
};

// One of several words: "2stage". No word is one of another row's.
template <class Variant, class Enum, std::size_t kCount>
struct Choice {
  static constexpr int kKeyBits = 2;

  Enum Variant::*field;
  const Word<Enum> (&words)[kCount];
  std::string_view type, constant;  // of Config; empty where the source does not need it

  std::string spelling(const Variant& variant) const { return std::string(spell(words, variant.*field)); }
  bool read(std::string_view part, Variant& variant) const {
    for (const Word<Enum>& word : words)
      if (word.text == part) return variant.*field = word.value, true;
    return false;
  }
  void add_to(ConfigText& config, const Variant& variant) const {
    if (constant.empty()) return;
    for (const Word<Enum>& word : words)
      if (word.value == variant.*field) config.add(type, constant, word.in_source);
  }
  void add_to(VariantKey& key, const Variant& variant) const noexcept {
    static_assert(kCount < 1 << kKeyBits);
    std::int64_t at = 0;
    while (at < static_cast<std::int64_t>(kCount) && words[at].value != variant.*field) ++at;
    key.append(at, kKeyBits);
  }
  std::string why_illegal(const Variant&) const { return {}; }
};
template <class Variant, class Enum, std::size_t kCount>
constexpr Choice<Variant, Enum, kCount> choice(Enum Variant::*field, const Word<Enum> (&words)[kCount],
                                               std::string_view type = {}, std::string_view constant = {}) {
  return {field, words, type, constant};
}

// A way that kernels have beside their usual one, which is spelled only where it is taken.
template <class Variant>
struct Extra : Choice<Variant, bool, 2> {
  std::string spelling(const Variant& variant) const {
    return variant.*this->field ? Choice<Variant, bool, 2>::spelling(variant) : std::string();
  }
};

// --- Of all rows -----------------------------------------------------------------------------------------------------

template <class Rows, class Variant>
std::string spell_variant(const Rows& rows, std::string_view family, const Variant& variant) {
  std::string text(family);
  const auto append = [&](const std::string& part) { text += part.empty() ? part : '-' + part; };
  std::apply([&](const auto&... row) { (append(row.spelling(variant)), ...); }, rows);
  return text;
}

// The field that the part names, which has its value then; null when it is none of any row.
template <class Rows, class Variant>
const void* read_part(const Rows& rows, std::string_view part, Variant& variant) {
  const void* field = nullptr;
  std::apply(
      [&](const auto&... row) {
        ((field = field == nullptr && row.read(part, variant) ? &(variant.*row.field) : field), ...);
      },
      rows);
  return field;
}

template <class Rows, class Variant>
bool equal(const Rows& rows, const Variant& a, const Variant& b) noexcept {
  return std::apply([&](const auto&... row) { return ((a.*row.field == b.*row.field) && ...); }, rows);
}

template <class Rows, class Variant>
bool less(const Rows& rows, const Variant& a, const Variant& b) noexcept {
  return std::apply([&](const auto&... row) { return std::tie(a.*row.field...) < std::tie(b.*row.field...); }, rows);
}

// Empty when every number may be what it is.
template <class Rows, class Variant>
std::string why_out_of_range(const Rows& rows, const Variant& variant) {
  std::string why;
  std::apply([&](const auto&... row) { ((why = why.empty() ? row.why_illegal(variant) : why), ...); }, rows);
  return why;
}

template <class Rows, class Variant>
void add_to(ConfigText& config, const Rows& rows, const Variant& variant) {
  std::apply([&](const auto&... row) { (row.add_to(config, variant), ...); }, rows);
}

template <class Rows, class Variant>
VariantKey::Words key_of(const Rows& rows, const Variant& variant) noexcept {
  VariantKey key;
  std::apply(
      [&](const auto&... row) {
        static_assert((std::decay_t<decltype(row)>::kKeyBits + ...) <= VariantKey::kMostBits);
        (row.add_to(key, variant), ...);
      },
      rows);
  return key.words();
}

}  // namespace flashjit::generator
