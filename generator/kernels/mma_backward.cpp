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
#include "generator/kernels/mma.h"
#include "generator/source_parts.h"

namespace flashjit::generator {
namespace {

// The first that is wide enough and fits the shared memory, which the last ones of their width do everywhere. By
// measurements on an H100: docs/kernels/backward.md.
struct TileRow {
  int max_head_dim;
  BackwardTiles tiles;
};
constexpr TileRow kTiles[] = {{64, {128, 128, 8, 1}}, {64, {64, 64, 4, 2}},  {128, {64, 128, 8, 1}},
                              {128, {64, 64, 8, 1}},  {256, {64, 64, 8, 1}}, {256, {32, 32, 4, 1}}};

// As BackwardShape lays it out.
int smem_bytes(const Problem& problem, const BackwardTiles& tiles) {
  const int columns = padded(problem.head_dim) + padded(problem.head_dim_v);
  const int rows = tiles.block_kv + tiles.stages * tiles.block_q;
  return (rows * columns + 2 * tiles.block_q * tiles.block_kv) * kElementBytes;
}

std::string render_config(const Problem& problem, const BackwardTiles& tiles, DType gradient,
                          const Architecture& architecture) {
  ConfigText config;
  const bool in_f32 = gradient == DType::f32;
  config.use("Element", row_of(problem.dtype).element);
  config.use("GradientElement", in_f32 ? "Single" : row_of(gradient).element);
  config.use("Arguments", "::Arguments");
  config.use("Masks", parts_in(Slot::mask, problem));
  config.use("ScoreParts", parts_in(Slot::score, problem));
  config.use("Predicates", parts_in(Slot::predicate, problem));
  config.use("Dropouts", parts_in(Slot::probability, problem));
  config.add("int", "kHeadDim", problem.head_dim);
  config.add("int", "kHeadDimV", problem.head_dim_v);
  config.add("int", "kGradientBytes", in_f32 ? 4 : kElementBytes);
  config.add("int", "kBlockQ", tiles.block_q);
  config.add("int", "kBlockKv", tiles.block_kv);
  config.add("int", "kWarps", tiles.warps);
  config.add("int", "kStages", tiles.stages);
  config.add("bool", "kSplitKv", false);
  config.add("bool", "kReducesPairs", architecture.major >= 9);
  return config.text();
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
  kernel.threads = tiles.warps * kWarpSize;
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
       "BackwardPrepareArguments", fmt::format("BackwardPrepare<{}>{{args}}", row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardPrepareArguments), architecture, templates);
}

PlainKernel render_backward_finish(DType dtype, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("backward-finish-{}", to_string(dtype)), "flashjit_backward_finish", "kernels/backward_rows.cuh",
       "BackwardFinishArguments", fmt::format("BackwardFinish<{}>{{args}}", row_of(dtype).element)},
      kBackwardRowsThreads, sizeof(BackwardFinishArguments), architecture, templates);
}

}  // namespace flashjit::generator
