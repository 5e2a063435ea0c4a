// SPDX-License-Identifier: Apache-2.0
// What a problem may ask for beside plain attention. This table is the only place that knows all features: the spelling
// of problems, the keys of launches, the rendered source and the layout of a launch's arguments follow from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.h"
#include "generator/functions.h"

namespace flashjit::generator {

// Where a part goes in a kernel. The contracts stand in templates/attention/: of a mask in mask.cuh, of a score in
// score.cuh, of a predicate in predicate.cuh, of what chooses the blocks of a tile in blocks.cuh, of an addition to the
// softmax in row_end.cuh, of what probabilities lose after it in probability.cuh, of where the rows of a tile lie in
// sequence.cuh, of how keys lie there in keys.cuh, of where values are in values.cuh, of what both are stored as in
// stored.cuh, of what elements of 8 bits are in format.cuh, of what products are of in products.cuh, of what the output
// is written as in written.cuh.
enum class Slot {
  mask,
  score,
  predicate,
  blocks,
  softmax,
  probability,
  sequences,
  keys,
  values,
  stored,
  format,
  products,
  written
};

// Where a problem says whether it asks for a feature: by a flag, or by a function.
struct FeatureField {
  bool Problem::*flag = nullptr;
  const FunctionText* Problem::*function = nullptr;
  FunctionKind kind = {};  // of that

  constexpr FeatureField(bool Problem::*of) : flag(of) {}
  constexpr FeatureField(const FunctionText* Problem::*of, FunctionKind of_kind) : function(of), kind(of_kind) {}
  bool in(const Problem& problem) const noexcept { return flag ? problem.*flag : problem.*function != nullptr; }
  friend bool operator==(const FeatureField&, const FeatureField&) = default;
};

// Of what has several parts for a feature: kernels of attention, those of them that can fetch blocks of tensors, and
// those that need derivatives by the scores.
enum class PartsFor : std::uint8_t { attention, fetching, gradients };
constexpr PartsFor parts_for_attention(bool fetches) { return fetches ? PartsFor::fetching : PartsFor::attention; }

// What a template has for a feature.
struct Part {
  const char* file = nullptr;  // in templates/
  const char* name = nullptr;  // of the struct in it
};

struct FeatureRow {
  FeatureField asked;
  std::string_view word;  // in the spelling of a problem; also the name of its arguments
  Slot slot;
  const char* file;                    // of the part, in templates/
  const char* part;                    // the struct in it
  const char* arguments = nullptr;     // its struct in abi.cuh; null: it has none
  std::size_t argument_bytes = 0;      // of that; of a function's, what its captures take comes on top
  std::size_t argument_alignment = 1;  // likewise
  // In place of that one:
  Part fetched = {};                // where a kernel fetches blocks of its tensor
  Part sloping = {}, capping = {};  // of a text that is such a formula
  Part curved = {};                 // for gradients, of a text that is not sloping

  bool is_in(const Problem& problem) const noexcept { return asked.in(problem); }
};

// In the order of the words in a spelling, of the arguments in a launch and of the parts in their slots. A feature
// keeps its place, so that names of kernels and records stay valid.
std::span<const FeatureRow> features();
// A bit for each row.
std::uint32_t feature_bits(const Problem& problem) noexcept;
// What tells the functions of problems with equal bits apart: with them, all that the rows say of a problem.
std::uint64_t function_bits(const Problem& problem) noexcept;
// The feature that a user's score is in other words, by its formula; null: none, or one that the problem has already.
bool Problem::*feature_of_score(const Problem& problem) noexcept;
// In the spelling of a problem: the row's word, and after it what tells a function from others.
std::string spell(const FeatureRow& row, const Problem& problem);

// What a kernel has of a row that the problem asks for.
Part part_of(const FeatureRow& row, const Problem& problem, PartsFor kernel) noexcept;
// The template of a kernel, and those of the parts that the problem has in it.
std::vector<std::string> with_parts(const char* file, const Problem& problem, PartsFor kernel = PartsFor::attention);
// The structs of the problem's functions, without any change to their texts.
std::string render_functions(const Problem& problem, PartsFor kernel = PartsFor::attention);
// struct Arguments: what a kernel of the family is launched with. family: its struct in abi.cuh. Behind it comes that
// of split keys, then those of the parts, and then these members.
std::string render_arguments(std::string_view family, const Problem& problem, bool split_kv = false,
                             std::string_view behind = {});
// The type of a slot: what the problem has in it.
std::string parts_in(Slot slot, const Problem& problem, PartsFor kernel = PartsFor::attention);
// Whether a kernel that can fetch blocks does.
bool is_fetched(const Problem& problem) noexcept;
bool has_part(Slot slot, const Problem& problem) noexcept;

// What a row that the problem asks for takes of that struct.
std::size_t argument_bytes(const FeatureRow& row, const Problem& problem) noexcept;
// Where in that struct the next part's arguments begin, when all before it take so many bytes.
std::size_t argument_offset(const FeatureRow& row, std::size_t bytes_before) noexcept;
// Bytes of that struct. family_bytes: of all that stands before the parts.
std::size_t argument_bytes(const Problem& problem, std::size_t family_bytes, std::size_t family_alignment) noexcept;

}  // namespace flashjit::generator
