// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <tuple>

#include "flashjit/error.h"
#include "flashjit/problem.h"

namespace flashjit {
namespace {

constexpr std::string_view kFamily = "mma";

// The words of the canonical spelling, one table for writing and for reading.
template <class Enum>
struct Word {
  Enum value;
  std::string_view text;
};
constexpr Word<Pipeline> kPipelines[] = {
    {Pipeline::serial, "serial"}, {Pipeline::overlap, "overlap"}, {Pipeline::rotate, "rotate"}};
constexpr Word<SmemLayout> kLayouts[] = {{SmemLayout::linear, "linear"}, {SmemLayout::swizzle, "swizzle"}};
constexpr Word<QuerySource> kQueries[] = {{QuerySource::shared, "qsmem"}, {QuerySource::registers, "qregs"}};
constexpr Word<Rescale> kRescales[] = {{Rescale::always, "always"}, {Rescale::rare, "rare"}};
constexpr Word<TileOrder> kOrders[] = {{TileOrder::natural, "natural"}, {TileOrder::longest_first, "longest"}};

template <class Words, class Enum>
std::string_view spell(const Words& words, Enum value) {
  for (const auto& word : words)
    if (word.value == value) return word.text;
  return "?";
}

template <class Words, class Enum>
bool read_word(const Words& words, std::string_view text, Enum& value) {
  for (const auto& word : words)
    if (word.text == text) {
      value = word.value;
      return true;
    }
  return false;
}

bool read_number(std::string_view prefix, std::string_view text, int& value) {
  if (text.size() <= prefix.size() || text.substr(0, prefix.size()) != prefix) return false;
  const char* const first = text.data() + prefix.size();
  const char* const last = text.data() + text.size();
  int number = 0;
  const auto [end, error] = std::from_chars(first, last, number);
  if (error != std::errc() || end != last || number < 0) return false;
  value = number;
  return true;
}

bool read_part(std::string_view part, Variant& variant) {
  return part == kFamily || read_number("q", part, variant.block_q) || read_number("kv", part, variant.block_kv) ||
         read_number("w", part, variant.warps) || read_number("k", part, variant.k_stages) ||
         read_number("v", part, variant.v_stages) || read_number("c", part, variant.ctas_per_sm) ||
         read_number("x", part, variant.ldmatrix) || read_word(kPipelines, part, variant.pipeline) ||
         read_word(kLayouts, part, variant.layout) || read_word(kQueries, part, variant.query) ||
         read_word(kRescales, part, variant.rescale) || read_word(kOrders, part, variant.order);
}

// The ladder of the write-up: each step is the one before with one change.
std::optional<Variant> ladder_step(std::string_view text) {
  if (text.size() != 2 || text[0] != 'v' || text[1] < '1' || text[1] > '5') return {};
  const int step = text[1] - '0';
  Variant variant;
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

auto fields(const Variant& v) {
  return std::tie(v.block_q, v.block_kv, v.warps, v.k_stages, v.v_stages, v.ctas_per_sm, v.pipeline, v.layout,
                  v.ldmatrix, v.query, v.rescale, v.order);
}

}  // namespace

int Variant::compare(const Variant& a, const Variant& b) noexcept {
  if (fields(a) < fields(b)) return -1;
  return fields(b) < fields(a) ? 1 : 0;
}

std::string to_string(const Variant& v) {
  return fmt::format("{}-q{}-kv{}-w{}-k{}-v{}-c{}-{}-{}-x{}-{}-{}-{}", kFamily, v.block_q, v.block_kv, v.warps,
                     v.k_stages, v.v_stages, v.ctas_per_sm, spell(kPipelines, v.pipeline), spell(kLayouts, v.layout),
                     v.ldmatrix, spell(kQueries, v.query), spell(kRescales, v.rescale), spell(kOrders, v.order));
}

Variant parse_variant(std::string_view text, const Variant& base) {
  if (const auto step = ladder_step(text)) return *step;
  Variant variant = base;
  for (std::string_view rest = text;;) {
    const std::size_t dash = rest.find('-');
    const std::string_view part = rest.substr(0, dash);
    if (!read_part(part, variant))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("variant: must be v1 to v5, or parts like {} joined by '-', but has '{}' in '{}'",
                              to_string(Variant{}), part, text));
    if (dash == std::string_view::npos) return variant;
    rest.remove_prefix(dash + 1);
  }
}

}  // namespace flashjit
