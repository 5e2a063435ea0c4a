// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <tuple>

#include "generator/variant_words.h"

namespace flashjit {
namespace {

auto fields(const HopperVariant& v) {
  return std::tie(v.block_q, v.block_kv, v.stages, v.q_stages, v.output, v.overlap, v.ping_pong, v.warp_specialized,
                  v.probabilities, v.cluster, v.rescale, v.scheduler, v.order, v.boundary);
}

}  // namespace

bool operator==(const HopperVariant& a, const HopperVariant& b) noexcept { return fields(a) == fields(b); }
bool operator<(const HopperVariant& a, const HopperVariant& b) noexcept { return fields(a) < fields(b); }

namespace generator {

std::string spell_variant(const HopperVariant& v) {
  return fmt::format("{}-q{}-kv{}-s{}-qs{}-{}-{}-{}-{}-{}-cl{}-{}-{}-{}-{}", family_name(v), v.block_q, v.block_kv,
                     v.stages, v.q_stages, spell(kOutputs, v.output), spell(kOverlaps, v.overlap),
                     spell(kPingPongs, v.ping_pong), spell(kSpecializations, v.warp_specialized),
                     spell(kProbabilities, v.probabilities), v.cluster, spell(kRescales, v.rescale),
                     spell(kSchedulers, v.scheduler), spell(kOrders, v.order), spell(kBoundaries, v.boundary));
}

const void* read_part(std::string_view part, HopperVariant& v) {
  return taker({read_number("q", part, v.block_q), read_number("kv", part, v.block_kv),
                read_number("s", part, v.stages), read_number("qs", part, v.q_stages),
                read_word(kOutputs, part, v.output), read_word(kOverlaps, part, v.overlap),
                read_word(kPingPongs, part, v.ping_pong), read_word(kSpecializations, part, v.warp_specialized),
                read_word(kProbabilities, part, v.probabilities), read_number("cl", part, v.cluster),
                read_word(kRescales, part, v.rescale), read_word(kSchedulers, part, v.scheduler),
                read_word(kOrders, part, v.order), read_word(kBoundaries, part, v.boundary)});
}

}  // namespace generator
}  // namespace flashjit
