// SPDX-License-Identifier: Apache-2.0
#include "generator/features.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/arguments.h"

namespace flashjit::generator {
namespace {

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
};

// The template that holds the parts of a slot together.
const char* all_of(Slot slot) {
  switch (slot) {
    case Slot::mask:
      return "AllOf";
    case Slot::score:
      return "InTurn";
    case Slot::softmax:
      break;
  }
  return "Additions";
}

std::size_t round_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::span<const FeatureRow> features() { return kFeatures; }

std::uint32_t feature_bits(const Problem& problem) noexcept {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < std::size(kFeatures); ++i)
    bits |= static_cast<std::uint32_t>(problem.*kFeatures[i].asked) << i;
  return bits;
}

std::vector<std::string> with_parts(const char* kernel, const Problem& problem) {
  std::vector<std::string> files{kernel};
  for (const FeatureRow& row : kFeatures)
    if (problem.*row.asked) files.emplace_back(row.file);
  return files;
}

std::string render_arguments(std::string_view family, const Problem& problem) {
  std::string members = fmt::format("  {} core;\n", family);
  for (const FeatureRow& row : kFeatures)
    if (problem.*row.asked && row.arguments) members += fmt::format("  {} {};\n", row.arguments, row.word);
  return "struct Arguments {\n" + members + "};\n";
}

std::string parts_in(Slot slot, const Problem& problem) {
  std::string parts;
  for (const FeatureRow& row : kFeatures)
    if (problem.*row.asked && row.slot == slot) parts += (parts.empty() ? "" : ", ") + std::string(row.part);
  return fmt::format("{}<{}>", all_of(slot), parts);
}

bool has_part(Slot slot, const Problem& problem) noexcept {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures),
                     [&](const FeatureRow& row) { return problem.*row.asked && row.slot == slot; });
}

std::size_t argument_offset(const FeatureRow& row, std::size_t bytes_before) noexcept {
  return round_up(bytes_before, row.argument_alignment);
}

std::size_t argument_bytes(const Problem& problem, std::size_t family_bytes, std::size_t family_alignment) noexcept {
  std::size_t bytes = family_bytes;
  for (const FeatureRow& row : kFeatures)
    if (problem.*row.asked) bytes = argument_offset(row, bytes) + row.argument_bytes;
  return round_up(bytes, family_alignment);
}

}  // namespace flashjit::generator
