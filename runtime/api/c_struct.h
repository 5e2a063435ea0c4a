// SPDX-License-Identifier: Apache-2.0
// Structs of the C interface, which callers have as their header declares them: shorter than here when that is of an
// older version, longer when it is of a newer one.
//
// Whoever adds a field: at the end, without padding before or after it, with a default of 0, and without touching the
// first sizes below.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "flashjit.h"
#include "flashjit/error.h"
#include "flashjit/version.h"

namespace flashjit::runtime {

struct StructFacts {
  const char* name;
  std::size_t first_size;  // what sizeof was in the first version
};
constexpr StructFacts facts_of(const flashjit_engine_options&) { return {"flashjit_engine_options", 56}; }
constexpr StructFacts facts_of(const flashjit_counters&) { return {"flashjit_counters", 64}; }
constexpr StructFacts facts_of(const flashjit_function&) { return {"flashjit_function", 40}; }
constexpr StructFacts facts_of(const flashjit_attention_options&) { return {"flashjit_attention_options", 48}; }
constexpr StructFacts facts_of(const flashjit_gradients&) { return {"flashjit_gradients", 32}; }
constexpr StructFacts facts_of(const flashjit_append_options&) { return {"flashjit_append_options", 112}; }
constexpr StructFacts facts_of(const flashjit_quantize_options&) { return {"flashjit_quantize_options", 72}; }
constexpr StructFacts facts_of(const flashjit_plan_info&) { return {"flashjit_plan_info", 32}; }
constexpr StructFacts facts_of(const flashjit_gradient_kinds&) { return {"flashjit_gradient_kinds", 32}; }
constexpr StructFacts facts_of(const flashjit_problem&) { return {"flashjit_problem", 24}; }

// Finds structs whose caller forgot the size, too.
template <typename Struct>
void require_plausible_size(const Struct& given) {
  constexpr std::size_t kLargest = 4096;
  const StructFacts facts = facts_of(given);
  if (given.struct_size >= facts.first_size && given.struct_size <= kLargest) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("struct_size: must be sizeof({}), was {}", facts.name, given.struct_size));
}

// What a newer header's version has beyond this one's must be left at its default: it would have no effect.
template <typename Struct>
void require_known_fields(const Struct& given) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  const auto is_set = [](unsigned char byte) { return byte != 0; };
  if (std::none_of(bytes + sizeof(Struct), bytes + std::max(sizeof(Struct), given.struct_size), is_set)) return;
  throw Error(ErrorCode::unsupported, fmt::format("{}: sets a field that this library, version {}, does not have",
                                                  facts_of(given).name, version()));
}

// The caller's struct as this version has it. Throws Error(invalid_argument, unsupported).
template <typename Struct>
Struct read_struct(const Struct& given) {
  require_plausible_size(given);
  require_known_fields(given);
  Struct known{};
  std::memcpy(&known, &given, std::min(sizeof(Struct), given.struct_size));
  return known;
}

// Writes what the caller's version has of it. Throws Error(invalid_argument).
template <typename Struct>
void write_struct(Struct known, Struct& given) {
  require_plausible_size(given);
  known.struct_size = given.struct_size;
  std::memcpy(&given, &known, std::min(sizeof(Struct), given.struct_size));
}

}  // namespace flashjit::runtime
