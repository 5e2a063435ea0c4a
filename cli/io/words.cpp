// SPDX-License-Identifier: Apache-2.0
#include "cli/io/words.h"

#include <flashjit/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

namespace flashjit::cli {
namespace {

[[noreturn]] void refuse(std::string_view name, std::string_view must, std::string_view was,
                         const std::string& hint = "") {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: must be {}, was '{}'{}", name, must, was, hint));
}

// How many letters must be typed, removed, changed or swapped with their neighbour to come from one to the other: the
// optimal string alignment distance, row by row.
std::size_t typing_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, above, row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::move(above);
    above = std::move(row);
    row.assign(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

// "a, b or c"
std::string alternatives(const std::vector<std::string>& words) {
  if (words.size() == 1) return words.front();
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

template <typename Number>
bool read_whole(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string did_you_mean(std::string_view text, const std::vector<std::string>& words) {
  constexpr std::size_t kFewestLetters = 3, kLettersPerSlip = 3;
  std::size_t nearest = std::max<std::size_t>(text.size() / kLettersPerSlip, 1) + 1;
  std::string_view found;
  for (const std::string_view word : words) {
    const bool is_part = text.size() >= kFewestLetters && word.find(text) != word.npos;
    const std::size_t distance = is_part ? 0 : typing_distance(text, word);
    // One that shares nothing helps nobody, and the word itself was not mistyped.
    const bool is_like = word != text && distance < std::min(text.size(), word.size());
    if (distance < nearest && is_like) nearest = distance, found = word;
  }
  return found.empty() ? std::string() : fmt::format("; did you mean '{}'?", found);
}

void require_word(std::string_view name, std::string_view text, const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), text) == words.end())
    refuse(name, alternatives(words), text, did_you_mean(text, words));
}

std::vector<std::string> split_list(std::string_view name, std::string_view text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (begin == end) refuse(name, "a list separated by commas", text);
    items.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

std::int64_t parse_integer(std::string_view name, std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  if (!read_whole(text, value) || value < low || value > high)
    refuse(name, fmt::format("a whole number from {} to {}", low, high), text);
  return value;
}

std::uint64_t parse_seed(std::string_view name, std::string_view text) {
  std::uint64_t value = 0;
  if (!read_whole(text, value))
    refuse(name, fmt::format("a whole number from 0 to {}", std::numeric_limits<std::uint64_t>::max()), text);
  return value;
}

float parse_finite(std::string_view name, std::string_view text) {
  float value = 0;
  if (!read_whole(text, value) || !std::isfinite(value))
    refuse(name, "a finite number that f32 can hold, such as 0.125", text);
  return value;
}

}  // namespace flashjit::cli
