// SPDX-License-Identifier: Apache-2.0
#include "generator/features.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/arguments.h"
#include "generator/functions.h"
#include "generator/stand_ins.h"

namespace flashjit::generator {
namespace {

constexpr const char* kScoreFunction = "parts/score/function.cuh";
constexpr const char* kMaskFunction = "parts/predicate/function.cuh";

constexpr FeatureRow kFeatures[] = {
    {&Problem::causal, "causal", Slot::mask, "parts/mask/causal.cuh", "CausalMask"},
    {&Problem::window, "window", Slot::mask, "parts/mask/window.cuh", "WindowMask", "WindowArguments",
     sizeof(WindowArguments), alignof(WindowArguments)},
    {&Problem::chunk, "chunk", Slot::mask, "parts/mask/chunk.cuh", "ChunkMask", "ChunkArguments",
     sizeof(ChunkArguments), alignof(ChunkArguments)},
    {&Problem::softcap, "softcap", Slot::score, "parts/score/softcap.cuh", "Softcap", "SoftcapArguments",
     sizeof(SoftcapArguments), alignof(SoftcapArguments)},
    {&Problem::alibi, "alibi", Slot::score, "parts/score/alibi.cuh", "AlibiSlopes", "HeadArguments",
     sizeof(HeadArguments), alignof(HeadArguments)},
    {&Problem::sinks, "sinks", Slot::softmax, "parts/softmax/sinks.cuh", "Sinks", "HeadArguments",
     sizeof(HeadArguments), alignof(HeadArguments)},
    {&Problem::prefix, "prefix", Slot::mask, "parts/mask/prefix.cuh", "PrefixMask", "PrefixArguments",
     sizeof(PrefixArguments), alignof(PrefixArguments)},
    {&Problem::block_mask, "blocks", Slot::blocks, "parts/blocks/block_mask.cuh", "BlockMask", "BlockMaskArguments",
     sizeof(BlockMaskArguments), alignof(BlockMaskArguments)},
    {{&Problem::bias, FunctionKind::bias},
     "bias",
     Slot::score,
     kScoreFunction,
     "ScoreFunction<text::BiasText, &::Arguments::bias>",
     "TextArguments<text::BiasText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments),
     {"parts/score/fetched_bias.cuh", "FetchedBias<text::BiasText, &::Arguments::bias>"}},
    {{&Problem::boolean_mask, FunctionKind::boolean_mask},
     "boolean_mask",
     Slot::predicate,
     kMaskFunction,
     "MaskFunction<text::BooleanMaskText, &::Arguments::boolean_mask>",
     "TextArguments<text::BooleanMaskText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments)},
    {{&Problem::documents, FunctionKind::documents},
     "documents",
     Slot::predicate,
     kMaskFunction,
     "MaskFunction<text::DocumentsText, &::Arguments::documents>",
     "TextArguments<text::DocumentsText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments)},
    {{&Problem::tree, FunctionKind::tree},
     "tree",
     Slot::predicate,
     kMaskFunction,
     "MaskFunction<text::TreeText, &::Arguments::tree>",
     "TextArguments<text::TreeText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments)},
    {{&Problem::score, FunctionKind::score},
     "score",
     Slot::score,
     kScoreFunction,
     "ScoreFunction<text::ScoreText, &::Arguments::score>",
     "TextArguments<text::ScoreText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments),
     {},
     {"parts/score/sloping_function.cuh", "SlopingFunction<text::ScoreText, &::Arguments::score>"},
     {"parts/score/capping_function.cuh", "CappingFunction<text::ScoreText, &::Arguments::score>"},
     {"parts/score/curved_function.cuh", "CurvedFunction<text::ScoreText, &::Arguments::score>"}},
    {{&Problem::mask, FunctionKind::mask},
     "mask",
     Slot::predicate,
     kMaskFunction,
     "MaskFunction<text::MaskText, &::Arguments::mask>",
     "TextArguments<text::MaskText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments)},
    {&Problem::dropout, "dropout", Slot::probability, "parts/probability/dropout.cuh", "Dropout", "DropoutArguments",
     sizeof(DropoutArguments), alignof(DropoutArguments)},
    {{&Problem::dropout_mask, FunctionKind::dropout_mask},
     "dropout_mask",
     Slot::probability,
     "parts/probability/dropout_mask.cuh",
     "DropoutMask<text::DropoutMaskText, &::Arguments::dropout_mask>",
     "TextArguments<text::DropoutMaskText>",
     sizeof(OffsetArguments),
     alignof(OffsetArguments)},
    {&Problem::ragged, "ragged", Slot::sequences, "parts/sequences/ragged.cuh", "RaggedSequences", "RaggedArguments",
     sizeof(RaggedArguments), alignof(RaggedArguments)},
    {&Problem::paged, "paged", Slot::keys, "parts/keys/paged.cuh", "PagedKeys", "PagedArguments",
     sizeof(PagedArguments), alignof(PagedArguments)},
    {&Problem::e4m3, "e4m3", Slot::stored, "parts/stored/e4m3.cuh", "E4m3", "E4m3Arguments", sizeof(E4m3Arguments),
     alignof(E4m3Arguments)},
    {&Problem::token_scales, "token_scales", Slot::stored, "parts/stored/token_scales.cuh", "TokenScales"},
    {&Problem::e4m3_queries, "e4m3_queries", Slot::products, "parts/products/e4m3.cuh", "E4m3Products",
     "E4m3QueryArguments", sizeof(E4m3QueryArguments), alignof(E4m3QueryArguments)},
    {&Problem::fast_sums, "fast_sums", Slot::products, "parts/products/fast_sums.cuh", "FastSums"},
    {&Problem::block_scales, "block_scales", Slot::products, "parts/products/block_scales.cuh", "BlockScales"},
    {&Problem::k_rotary, "k_rotary", Slot::keys, "parts/keys/rotary.cuh", "RotaryKeys", "RotaryKeyArguments",
     sizeof(RotaryKeyArguments), alignof(RotaryKeyArguments)},
    {&Problem::latent, "latent", Slot::values, "parts/values/latent.cuh", "LatentValues"},
    {&Problem::values_transposed, "values_transposed", Slot::values, "parts/values/transposed.cuh", "TransposedValues"},
    {&Problem::out_e4m3, "out_e4m3", Slot::written, "parts/written/e4m3.cuh", "E4m3Output", "OutScaleArguments",
     sizeof(OutScaleArguments), alignof(OutScaleArguments)},
    {&Problem::e5m2, "e5m2", Slot::format, "parts/format/e5m2.cuh", "E5m2"},
};

// The template that holds the parts of a slot together.
const char* all_of(Slot slot) {
  switch (slot) {
    case Slot::mask:
      return "AllOf";
    case Slot::score:
      return "InTurn";
    case Slot::predicate:
      return "AllSee";
    case Slot::blocks:
      return "BlocksBy";
    case Slot::probability:
      return "Dropping";
    case Slot::sequences:
      return "SequencesBy";
    case Slot::keys:
      return "KeysBy";
    case Slot::values:
      return "ValuesBy";
    case Slot::stored:
      return "StoredAs";
    case Slot::format:
      return "FormatOf";
    case Slot::products:
      return "ProductsOf";
    case Slot::written:
      return "WrittenAs";
    case Slot::softmax:
      break;
  }
  return "Additions";
}

// Blocks of 16-bit elements are, those of a row side by side. row: one that the problem asks for.
bool is_fetched(const FeatureRow& row, const Problem& problem) noexcept {
  if (!row.fetched.file) return false;
  const CaptureType& tensor = (problem.*row.asked.function)->captures.front();
  return tensor.packed && size_of(tensor.dtype) == 2;
}

std::size_t round_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::span<const FeatureRow> features() { return kFeatures; }

std::uint32_t feature_bits(const Problem& problem) noexcept {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < std::size(kFeatures); ++i)
    bits |= static_cast<std::uint32_t>(kFeatures[i].is_in(problem)) << i;
  return bits;
}

// The library's by their dtype, users' by their number.
std::uint64_t function_bits(const Problem& problem) noexcept {
  constexpr int kDTypeBits = 3;
  std::uint64_t bits = 0;
  for (const FeatureRow& row : kFeatures) {
    if (!row.asked.function || !row.is_in(problem)) continue;
    const FunctionText& function = *(problem.*row.asked.function);
    bits = is_users(function.kind) ? bits << kFunctionNumberBits | function.number
                                   : bits << kDTypeBits | static_cast<std::uint64_t>(function.captures.front().dtype);
  }
  return bits;
}

bool Problem::*feature_of_score(const Problem& problem) noexcept {
  bool Problem::*feature = nullptr;
  switch (problem.score ? problem.score->formula.kind : Formula::Kind::none) {
    case Formula::Kind::sloping:
      feature = &Problem::alibi;
      break;
    case Formula::Kind::capping:
      feature = &Problem::softcap;
      break;
    case Formula::Kind::none:
      break;
  }
  return feature && problem.*feature ? nullptr : feature;
}

std::string spell(const FeatureRow& row, const Problem& problem) {
  if (row.asked.flag) return std::string(row.word);
  const FunctionText& function = *(problem.*row.asked.function);
  if (is_users(function.kind))
    return fmt::format("{}.{}", row.word, is_stand_in(function) ? stand_in_of(function).word : function.digest);
  if (library_dtypes(function.kind).size() == 1) return std::string(row.word);
  return fmt::format("{}.{}", row.word, to_string(function.captures.front().dtype));
}

Part part_of(const FeatureRow& row, const Problem& problem, PartsFor kernel) noexcept {
  if (kernel == PartsFor::fetching && is_fetched(row, problem)) return row.fetched;
  const bool is_text = row.asked.function != nullptr;
  const Formula::Kind kind = is_text ? (problem.*row.asked.function)->formula.kind : Formula::Kind::none;
  if (kernel == PartsFor::gradients && row.curved.file && kind != Formula::Kind::sloping) return row.curved;
  switch (kind) {
    case Formula::Kind::sloping:
      return row.sloping;
    case Formula::Kind::capping:
      return row.capping;
    case Formula::Kind::none:
      break;
  }
  return {row.file, row.part};
}

std::vector<std::string> with_parts(const char* file, const Problem& problem, PartsFor kernel) {
  std::vector<std::string> files{file};
  for (const FeatureRow& row : kFeatures)
    if (row.is_in(problem)) files.emplace_back(part_of(row, problem, kernel).file);
  return files;
}

std::string render_functions(const Problem& problem, PartsFor kernel) {
  std::string text;
  for (const FeatureRow& row : kFeatures)
    if (row.asked.function && row.is_in(problem))
      text += render(*(problem.*row.asked.function), kernel == PartsFor::gradients && row.curved.file);
  return text;
}

std::string render_arguments(std::string_view family, const Problem& problem, bool split_kv, std::string_view behind) {
  std::string members = fmt::format("  {} core;\n", family);
  if (split_kv) members += "  SplitArguments splits;\n";
  for (const FeatureRow& row : kFeatures)
    if (row.is_in(problem) && row.arguments) members += fmt::format("  {} {};\n", row.arguments, row.word);
  return fmt::format("struct Arguments {{\n{}{}}};\n", members, behind);
}

std::string parts_in(Slot slot, const Problem& problem, PartsFor kernel) {
  std::string parts;
  for (const FeatureRow& row : kFeatures)
    if (row.is_in(problem) && row.slot == slot)
      parts += (parts.empty() ? "" : ", ") + std::string(part_of(row, problem, kernel).name);
  return fmt::format("{}<{}>", all_of(slot), parts);
}

bool is_fetched(const Problem& problem) noexcept {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures),
                     [&](const FeatureRow& row) { return row.is_in(problem) && is_fetched(row, problem); });
}

bool has_part(Slot slot, const Problem& problem) noexcept {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures),
                     [&](const FeatureRow& row) { return row.is_in(problem) && row.slot == slot; });
}

std::size_t argument_bytes(const FeatureRow& row, const Problem& problem) noexcept {
  return row.argument_bytes + (row.asked.function ? (problem.*row.asked.function)->bytes : 0);
}

std::size_t argument_offset(const FeatureRow& row, std::size_t bytes_before) noexcept {
  return round_up(bytes_before, row.argument_alignment);
}

std::size_t argument_bytes(const Problem& problem, std::size_t family_bytes, std::size_t family_alignment) noexcept {
  std::size_t bytes = family_bytes;
  for (const FeatureRow& row : kFeatures)
    if (row.is_in(problem)) bytes = argument_offset(row, bytes) + argument_bytes(row, problem);
  return round_up(bytes, family_alignment);
}

}  // namespace flashjit::generator
