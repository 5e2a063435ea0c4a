// SPDX-License-Identifier: Apache-2.0
#include "generator/score_gradients.h"

#include <fmt/format.h>

#include "generator/arguments.h"

namespace flashjit::generator {
namespace {

struct ScoreGradientRow {
  bool KernelGradients::*wanted;
  const char *file, *part;
  const char *arguments, *member;
  std::size_t bytes;
};
constexpr ScoreGradientRow kScoreGradients[] = {
    {&KernelGradients::slopes, "parts/score_gradient/slopes.cuh", "SlopeGradient", "SlopeGradientArguments",
     "slope_gradient", sizeof(SlopeGradientArguments)},
    {&KernelGradients::bias, "parts/score_gradient/bias.cuh", "BiasGradient", "BiasGradientArguments", "bias_gradient",
     sizeof(BiasGradientArguments)}};

}  // namespace

std::vector<std::string> with_score_gradients(std::vector<std::string> files, const KernelGradients& gradients) {
  for (const ScoreGradientRow& row : kScoreGradients)
    if (gradients.*row.wanted) files.emplace_back(row.file);
  return files;
}

std::string score_gradient_parts(const KernelGradients& gradients) {
  std::string parts;
  for (const ScoreGradientRow& row : kScoreGradients)
    if (gradients.*row.wanted) parts += (parts.empty() ? "" : ", ") + std::string(row.part);
  return fmt::format("AllAdded<{}>", parts);
}

std::string score_gradient_members(const KernelGradients& gradients) {
  std::string members;
  for (const ScoreGradientRow& row : kScoreGradients)
    if (gradients.*row.wanted) members += fmt::format("  {} {};\n", row.arguments, row.member);
  return members;
}

std::size_t score_gradient_bytes(const KernelGradients& gradients) noexcept {
  std::size_t bytes = 0;
  for (const ScoreGradientRow& row : kScoreGradients)
    if (gradients.*row.wanted) bytes += row.bytes;
  return bytes;
}

}  // namespace flashjit::generator
