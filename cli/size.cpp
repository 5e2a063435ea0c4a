// SPDX-License-Identifier: Apache-2.0
#include "cli/size.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <string_view>

namespace flashjit::cli {
namespace {

constexpr std::string_view kUnits = "KMGT";
constexpr int kUnitBits = 10;

}  // namespace

std::uint64_t parse_size(const std::string& option, const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  const std::size_t power = unit == end ? 0 : kUnits.find(*unit) + 1;  // 0 as well when it is no unit
  const bool spelled = error == std::errc{} && end - unit == (power == 0 ? 0 : 1);
  const std::size_t shift = power * kUnitBits;
  if (!spelled || value == 0 || value > std::numeric_limits<std::uint64_t>::max() >> shift) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: must be bytes, or a number with K, M, G or T, and more than 0, was '{}'", option, text));
  }
  return value << shift;
}

std::string size_text(std::uint64_t bytes) {
  if (bytes >> kUnitBits == 0) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::size_t power = 0;
  while (value >= 1 << kUnitBits && power < kUnits.size()) {
    value /= 1 << kUnitBits;
    ++power;
  }
  return fmt::format("{:.1f} {}iB", value, kUnits[power - 1]);
}

}  // namespace flashjit::cli
