// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the mma.sync backward kernel and of what goes row by row before and behind it: tiles,
// shared memory and source. docs/kernels/backward.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "generator/arguments.h"
#include "generator/backward.h"
#include "generator/dtype.h"
#include "generator/features.h"
#include "generator/source_parts.h"

namespace flashjit::generator {
namespace {

constexpr int kBytesOfElement = 2;

// The first that is wide enough and fits the shared memory, which the last ones of their width do everywhere. By
// measurements on an H100: docs/kernels/backward.md.
struct TileRow {
  int max_head_dim;
  BackwardTiles tiles;
};
constexpr TileRow kTiles[] = {{64, {128, 128, 8, 1}}, {64, {64, 64, 4, 2}},  {128, {64, 128, 8, 1}},
                              {128, {64, 64, 8, 1}},  {256, {64, 64, 8, 1}}, {256, {32, 32, 4, 1}}};

int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

// As BackwardShape lays it out.
int smem_bytes(const Problem& problem, const BackwardTiles& tiles) {
  const int columns = padded(problem.head_dim) + padded(problem.head_dim_v);
  const int rows = tiles.block_kv + tiles.stages * tiles.block_q;
  return (rows * columns + 2 * tiles.block_q * tiles.block_kv) * kBytesOfElement;
}

std::string render_config(const Problem& problem, const BackwardTiles& tiles, DType gradient,
                          const Architecture& architecture) {
  std::string members;
  const auto use = [&](const char* name, const std::string& type) {
    members += fmt::format("  using {} = {};\n", name, type);
  };
  const auto add = [&](const char* type, const char* name, int value) {
    members += fmt::format("  static constexpr {} {} = {};\n", type, name, value);
  };
  const bool in_f32 = gradient == DType::f32;
  use("Element", generator::row_of(problem.dtype).element);
  use("GradientElement", in_f32 ? "Single" : generator::row_of(gradient).element);
  use("Arguments", "::Arguments");
  use("Masks", parts_in(Slot::mask, problem));
  use("ScoreParts", parts_in(Slot::score, problem));
  use("Predicates", parts_in(Slot::predicate, problem));
  use("Dropouts", parts_in(Slot::probability, problem));
  add("int", "kHeadDim", problem.head_dim);
  add("int", "kHeadDimV", problem.head_dim_v);
  add("int", "kGradientBytes", in_f32 ? 4 : kBytesOfElement);
  add("int", "kBlockQ", tiles.block_q);
  add("int", "kBlockKv", tiles.block_kv);
  add("int", "kWarps", tiles.warps);
  add("int", "kStages", tiles.stages);
  add("bool", "kSplitKv", 0);
  add("bool", "kReducesPairs", architecture.major >= 9);
  return "struct Config {\n" + members + "};\n";
}

}  // namespace

Problem backward_problem(const Problem& problem) {
  Problem of_scores = problem;
  of_scores.sinks = false;       // they are in the LSE
  of_scores.block_mask = false;  // which leaves out no more than what is 0
  return of_scores;
}

BackwardTiles backward_tiles(const Problem& problem, const Architecture& architecture) {
  const int head_dim = std::max(problem.head_dim, problem.head_dim_v);
  const auto row = std::find_if(std::begin(kTiles), std::end(kTiles), [&](const TileRow& each) {
    return head_dim <= each.max_head_dim && smem_bytes(problem, each.tiles) <= architecture.smem_per_block;
  });
  return row->tiles;
}

PlainKernel render_backward(const Problem& problem, DType gradient, const Architecture& architecture,
                            const Templates& templates) {
  const BackwardTiles tiles = backward_tiles(problem, architecture);
  PlainKernel kernel{};
  kernel.threads = tiles.warps * 32;
  kernel.argument_bytes = argument_bytes(problem, sizeof(BackwardArguments), alignof(BackwardArguments));
  kernel.smem_bytes = smem_bytes(problem, tiles);
  Source& source = kernel.source;
  const std::string of_forward = to_string(problem);
  source = named_source(fmt::format("bwd-{}{}.mma-q{}-kv{}-w{}-s{}.{}", of_forward.substr(of_forward.find('-') + 1),
                                    gradient == DType::f32 ? "-f32" : "", tiles.block_q, tiles.block_kv, tiles.warps,
                                    tiles.stages, architecture.name),
                        "flashjit_backward");
  source.device_code = templates.flatten(with_parts("kernels/mma_backward.cuh", problem));
  source.generated = kGenerated + render_functions(problem) + render_arguments("BackwardArguments", problem) +
                     render_config(problem, tiles, gradient, architecture) +
                     render({"BackwardShape", kernel.smem_bytes, kernel.threads, kernel.argument_bytes}) +
                     fmt::format(
                         "extern \"C\" __global__ void __launch_bounds__({})\n"
                         "    {}(const __grid_constant__ Arguments args) {{\n"
                         "  extern __shared__ __align__(128) char smem[];\n"
                         "  BackwardMma<Config>(args, ptx::cvta_to_shared(smem)).run();\n"
                         "}}\n",
                         kernel.threads, source.entry);
  return kernel;
}

PlainKernel render_backward_prepare(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("backward-prepare-{}", to_string(dtype)), "flashjit_backward_prepare", "kernels/backward_rows.cuh",
       "BackwardPrepareArguments", fmt::format("BackwardPrepare<{}>{{args}}", generator::row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardPrepareArguments), architecture, templates);
}

PlainKernel render_backward_finish(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("backward-finish-{}", to_string(dtype)), "flashjit_backward_finish", "kernels/backward_rows.cuh",
       "BackwardFinishArguments", fmt::format("BackwardFinish<{}>{{args}}", generator::row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardFinishArguments), architecture, templates);
}

}  // namespace flashjit::generator
