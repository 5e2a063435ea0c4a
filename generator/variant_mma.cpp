// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <tuple>

#include "generator/variant_words.h"

namespace flashjit {
namespace {

auto fields(const MmaVariant& v) {
  return std::tie(v.block_q, v.block_kv, v.warps, v.k_stages, v.v_stages, v.ctas_per_sm, v.pipeline, v.layout,
                  v.ldmatrix, v.query, v.rescale, v.order);
}

}  // namespace

bool operator==(const MmaVariant& a, const MmaVariant& b) noexcept { return fields(a) == fields(b); }
bool operator<(const MmaVariant& a, const MmaVariant& b) noexcept { return fields(a) < fields(b); }

namespace generator {

std::string spell_variant(const MmaVariant& v) {
  return fmt::format("{}-q{}-kv{}-w{}-k{}-v{}-c{}-{}-{}-x{}-{}-{}-{}", family_name(v), v.block_q, v.block_kv, v.warps,
                     v.k_stages, v.v_stages, v.ctas_per_sm, spell(kPipelines, v.pipeline), spell(kLayouts, v.layout),
                     v.ldmatrix, spell(kQueries, v.query), spell(kRescales, v.rescale), spell(kOrders, v.order));
}

const void* read_part(std::string_view part, MmaVariant& v) {
  return taker(
      {read_number("q", part, v.block_q), read_number("kv", part, v.block_kv), read_number("w", part, v.warps),
       read_number("k", part, v.k_stages), read_number("v", part, v.v_stages), read_number("c", part, v.ctas_per_sm),
       read_number("x", part, v.ldmatrix), read_word(kPipelines, part, v.pipeline), read_word(kLayouts, part, v.layout),
       read_word(kQueries, part, v.query), read_word(kRescales, part, v.rescale), read_word(kOrders, part, v.order)});
}

}  // namespace generator
}  // namespace flashjit
