// SPDX-License-Identifier: Apache-2.0
// Structs of the C interface, which callers have as their header declares them: shorter than here when that is of an
// older version, longer when it is of a newer one.
//
// Whoever adds a field: at the end, without padding before or after it, with a default of 0, and without touching the
// first sizes below.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "flashjit.h"
#include "flashjit_from_c.h"

namespace flashjit::runtime {

using from_c::StructFacts;
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

// Finds structs whose caller forgot the size, too. Throws Error(invalid_argument).
void require_plausible_size(const StructFacts& facts, std::size_t size);

// The caller's struct as this version has it. Throws Error(invalid_argument, unsupported).
template <typename Struct>
Struct read_struct(const Struct& given) {
  Struct known{};
  from_c::read_struct(facts_of(given), &given, &known, sizeof known);
  return known;
}

// Writes what the caller's version has of it. Throws Error(invalid_argument).
template <typename Struct>
void write_struct(Struct known, Struct& given) {
  require_plausible_size(facts_of(given), given.struct_size);
  known.struct_size = given.struct_size;
  std::memcpy(&given, &known, std::min(sizeof(Struct), given.struct_size));
}

}  // namespace flashjit::runtime
