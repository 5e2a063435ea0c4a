// SPDX-License-Identifier: Apache-2.0
// The words of the variants' spelling: one table for each choice, for writing and for reading, and for the source.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "flashjit/variant.h"

namespace flashjit::generator {

template <class Enum>
struct Word {
  Enum value;
  std::string_view text;             // in a spelling
  std::string_view enumerator = {};  // in the rendered source, where that names it
};

inline constexpr Word<Pipeline> kPipelines[] = {{Pipeline::serial, "serial", "Pipeline::serial"},
                                                {Pipeline::overlap, "overlap", "Pipeline::overlap"},
                                                {Pipeline::rotate, "rotate", "Pipeline::rotate"}};
inline constexpr Word<SmemLayout> kLayouts[] = {{SmemLayout::linear, "linear"}, {SmemLayout::swizzle, "swizzle"}};
inline constexpr Word<QuerySource> kQueries[] = {{QuerySource::shared, "qsmem"}, {QuerySource::registers, "qregs"}};
inline constexpr Word<Rescale> kRescales[] = {{Rescale::always, "always", "Rescale::always"},
                                              {Rescale::rare, "rare", "Rescale::rare"},
                                              {Rescale::lazy, "lazy", "Rescale::lazy"}};
inline constexpr Word<TileOrder> kOrders[] = {{TileOrder::natural, "natural"}, {TileOrder::longest_first, "longest"}};
inline constexpr Word<OutputSlot> kOutputs[] = {{OutputSlot::query, "oquery", "OutputSlot::query"},
                                                {OutputSlot::half, "half", "OutputSlot::half"},
                                                {OutputSlot::whole, "whole", "OutputSlot::whole"}};
inline constexpr Word<GemmSoftmax> kOverlaps[] = {{GemmSoftmax::serial, "serial", "GemmSoftmax::serial"},
                                                  {GemmSoftmax::two_stage, "2stage", "GemmSoftmax::two_stage"},
                                                  {GemmSoftmax::three_stage, "3stage", "GemmSoftmax::three_stage"}};
inline constexpr Word<PingPong> kPingPongs[] = {{PingPong::off, "ppoff", "PingPong::off"},
                                                {PingPong::gemm, "ppgemm", "PingPong::gemm"},
                                                {PingPong::softmax, "ppsoftmax", "PingPong::softmax"}};
inline constexpr Word<bool> kSpecializations[] = {{true, "ws", "true"}, {false, "nows", "false"}};
inline constexpr Word<ProbabilitySource> kProbabilities[] = {{ProbabilitySource::registers, "pregs"},
                                                             {ProbabilitySource::shared, "psmem"}};
inline constexpr Word<Scheduler> kSchedulers[] = {{Scheduler::single, "single", "Scheduler::single"},
                                                  {Scheduler::fixed, "fixed", "Scheduler::fixed"},
                                                  {Scheduler::dynamic, "dynamic", "Scheduler::dynamic"}};
inline constexpr Word<TileBoundary> kBoundaries[] = {{TileBoundary::split, "split"}, {TileBoundary::fused, "fused"}};

template <class Words, class Enum>
std::string_view spell(const Words& words, Enum value) {
  for (const auto& word : words)
    if (word.value == value) return word.text;
  return "?";
}

template <class Words, class Enum>
std::string_view enumerator(const Words& words, Enum value) {
  for (const auto& word : words)
    if (word.value == value) return word.enumerator;
  return "?";
}

// These read a part of a spelling into its field, and give the field's address; null, and the value as before, when the
// part is none of this field.
template <class Words, class Enum>
const void* read_word(const Words& words, std::string_view text, Enum& value) {
  for (const auto& word : words)
    if (word.text == text) {
      value = word.value;
      return &value;
    }
  return nullptr;
}
// "kv64" into 64.
const void* read_number(std::string_view prefix, std::string_view text, int& value);

// Of what was tried to read a part into: the field that took it. No part is spelled like that of another field.
inline const void* taker(std::initializer_list<const void*> tried) {
  for (const void* field : tried)
    if (field != nullptr) return field;
  return nullptr;
}

// Each family's spelling. read_part changes the field that the part names and gives its address; null when no field is
// spelled so.
inline constexpr const char* family_name(const MmaVariant&) { return "mma"; }
inline constexpr const char* family_name(const HopperVariant&) { return "hopper"; }
std::string spell_variant(const MmaVariant& variant);
std::string spell_variant(const HopperVariant& variant);
const void* read_part(std::string_view part, MmaVariant& variant);
const void* read_part(std::string_view part, HopperVariant& variant);

}  // namespace flashjit::generator
