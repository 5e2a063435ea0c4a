// SPDX-License-Identifier: Apache-2.0
#include "cli/io/size.h"

#include <fmt/format.h>

#include <string_view>

namespace flashjit::cli {
namespace {

constexpr std::string_view kUnits = "KMGT";
constexpr int kUnitBits = 10;

}  // namespace

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
