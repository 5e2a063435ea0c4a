// SPDX-License-Identifier: Apache-2.0
#include "flashjit/variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "flashjit/error.h"
#include "generator/family.h"
#include "generator/tunables.h"

namespace flashjit {
namespace {

// One plain variant of each family, in the order of the families.
constexpr Variant kFamilies[] = {MmaVariant{}, HopperVariant{}};

// The ladder of the write-up: each step is the one before with one change.
std::optional<Variant> ladder_step(std::string_view text) {
  if (text.size() != 2 || text[0] != 'v' || text[1] < '1' || text[1] > '5') return {};
  const int step = text[1] - '0';
  MmaVariant variant;
  variant.block_q = 64, variant.block_kv = 64, variant.warps = 4;
  variant.query = QuerySource::registers;
  variant.rescale = Rescale::always;
  variant.layout = step >= 2 ? SmemLayout::swizzle : SmemLayout::linear;
  variant.pipeline = step >= 3 ? Pipeline::overlap : Pipeline::serial;
  variant.k_stages = step >= 3 ? 2 : 1;
  variant.v_stages = step == 3 || step == 4 ? 2 : 1;
  variant.ldmatrix = step >= 4 ? 4 : 2;
  return variant;
}

const void* read_part(std::string_view part, Variant& variant) {
  return std::visit([&](auto& of_family) { return generator::read_part(part, of_family); }, variant);
}

// At each '-'. At least one part, which may be empty.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t dash; (dash = text.find('-')) != std::string_view::npos; text.remove_prefix(dash + 1))
    parts.push_back(text.substr(0, dash));
  parts.push_back(text);
  return parts;
}

[[noreturn]] void refuse(std::string_view part, std::string_view text, const Variant& variant) {
  const Variant& plain = kFamilies[variant.index()];
  std::string message = fmt::format("variant: must be v1 to v5, or parts like {} joined by '-', but has '{}' in '{}'",
                                    to_string(plain), part, text);
  for (Variant other : kFamilies)
    if (other.index() != variant.index() && read_part(part, other))
      message += fmt::format("; '{}' is a part of the {} family", part, family(other));
  throw Error(ErrorCode::invalid_argument, message);
}

[[noreturn]] void refuse_both(std::string_view part, std::string_view again, std::string_view text) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("variant: must have one part for each tunable, but has '{}' and '{}' in '{}'", part, again, text));
}

}  // namespace

const char* family(const Variant& variant) noexcept {
  return std::visit([](const auto& of_family) { return generator::family_name(of_family); }, variant);
}

int block_q(const Variant& variant) noexcept {
  return std::visit([](const auto& of_family) { return of_family.block_q; }, variant);
}

int block_kv(const Variant& variant) noexcept {
  return std::visit([](const auto& of_family) { return of_family.block_kv; }, variant);
}

std::string to_string(const Variant& variant) {
  return std::visit([](const auto& of_family) { return generator::spell_variant(of_family); }, variant);
}

Variant parse_variant(std::string_view text, const Variant& base) {
  if (const auto step = ladder_step(text)) return *step;
  Variant variant = base;
  std::vector<std::string_view> parts = split(text);
  const auto named = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                  [&](const Variant& plain) { return parts.front() == family(plain); });
  if (named != std::end(kFamilies)) {
    parts.erase(parts.begin());
    if (named->index() != base.index()) variant = *named;
  }
  std::vector<std::pair<const void*, std::string_view>> taken;  // fields of variant, and the parts that set them
  for (const std::string_view part : parts) {
    const void* const field = read_part(part, variant);
    if (field == nullptr) refuse(part, text, variant);
    for (const auto& [other, by] : taken)
      if (other == field) refuse_both(by, part, text);
    taken.emplace_back(field, part);
  }
  return variant;
}

const char* to_string(VariantExplanation::Verdict verdict) noexcept {
  switch (verdict) {
    case VariantExplanation::Verdict::kept:
      return "kept";
    case VariantExplanation::Verdict::pruned:
      return "pruned";
    case VariantExplanation::Verdict::replaced:
      return "replaced";
    case VariantExplanation::Verdict::illegal:
      return "illegal";
  }
  return "?";
}

namespace generator {

bool read_number(std::string_view letters, std::string_view part, int& value) {
  if (part.size() <= letters.size() || !part.starts_with(letters)) return false;
  const char* const first = part.data() + letters.size();
  const char* const last = part.data() + part.size();
  int number = 0;
  const auto [end, error] = std::from_chars(first, last, number);
  if (error != std::errc() || end != last || number < 0) return false;
  value = number;
  return true;
}

}  // namespace generator
}  // namespace flashjit
