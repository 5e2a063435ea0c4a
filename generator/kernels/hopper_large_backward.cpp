// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the Hopper backward kernels of large heads: what is legal, shared memory and source.
// docs/kernels/large_heads.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "generator/arguments.h"
#include "generator/backward_family.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/kernels/hopper.h"
#include "generator/matrices.h"
#include "generator/plan.h"
#include "generator/source_parts.h"
#include "generator/tunables.h"

namespace flashjit::generator {
namespace {

constexpr int kStreams = 2;
constexpr int kWgmmaDepth = 16;
constexpr int kPanelColumns = 64;                                                // of every tile
constexpr int kPieceBytes = kWarpgroupRows * kPanelColumns * kElementBytes;      // of a ring's slots
constexpr int kExchangeBytes = kWarpgroupRows * kWarpgroupRows * kElementBytes;  // P or dS of a stream
constexpr int kSmallBytes = 1024;         // of a stream: LSE and row sums of a block, barriers
constexpr int kMostPieces = 12;           // of a ring: what comes later is not waited for
constexpr int kSmemOfBlock = 227 * 1024;  // on sm_90a, where alone the kernels run
constexpr int kThreads = (kStreams + 1) * kWarpgroupThreads;

bool differentiates(GradientPass pass) { return pass != GradientPass::values; }

// But for the rings.
int fixed_bytes(const Problem& problem, GradientPass pass) {
  const int own_tiles = differentiates(pass) ? 2 : 1;
  return own_tiles * kWarpgroupRows * panels_of(problem.head_dim).row_bytes() +
         kStreams * (kExchangeBytes + kSmallBytes);
}
// Of a ring: as many as there is room for.
int pieces_of(const Problem& problem, GradientPass pass) {
  return std::min((kSmemOfBlock - fixed_bytes(problem, pass)) / (kStreams * kPieceBytes), kMostPieces);
}
// As hopper/large_backward_shape.cuh lays it out.
int smem_bytes(const Problem& problem, GradientPass pass) {
  return fixed_bytes(problem, pass) + kStreams * pieces_of(problem, pass) * kPieceBytes;
}

// Of the gradient, of a stream: LargeBackwardShape::kColumns.
int columns_of_stream(const Problem& problem) {
  return round_up((problem.head_dim + kStreams - 1) / kStreams, kWgmmaDepth);
}

constexpr std::string_view kScoreType = "DerivativeMatrix", kGradientType = "GradientMatrix";

std::string render_matrices(const Problem& problem, GradientPass pass) {
  const int steps = (problem.head_dim + kWgmmaDepth - 1) / kWgmmaDepth;
  return render(DerivativeMatrix{.type = kScoreType,
                                 .scores = "s",
                                 .gradients = "t",
                                 .probabilities = "p",
                                 .derivatives = "g",
                                 .dtype = problem.dtype,
                                 .queries = kWarpgroupRows,
                                 .score_steps = steps,
                                 .gradient_steps = steps,
                                 .row_bytes = kPanelColumns * kElementBytes,
                                 .steps_of_piece = kPanelColumns / kWgmmaDepth}) +
         render(OutputMatrix{.type = kGradientType,
                             .registers = "o",
                             .dtype = problem.dtype,
                             .columns = columns_of_stream(problem),
                             .steps = kLargeBackwardRows / kWgmmaDepth,
                             .probabilities = "",
                             .reads = true,
                             .transposes = pass != GradientPass::queries});
}

std::string_view pass_name(GradientPass pass) {
  return pass == GradientPass::values ? "values" : pass == GradientPass::keys ? "keys" : "queries";
}

}  // namespace

int large_backward_smem_bytes(const Problem& problem) { return smem_bytes(problem, GradientPass::keys); }

std::string why_illegal_large_backward(const Problem& problem, const HopperBackwardVariant& variant) {
  if (problem.head_dim_v != problem.head_dim)
    return must("head_dim_v",
                fmt::format("that of q, {}, for hopper and head dims above {}", problem.head_dim, kMostUsualHeadDim),
                problem.head_dim_v);
  const auto want = [](std::string_view what, int was) {
    return must(what, fmt::format("64 for head dims above {}", kMostUsualHeadDim), was);
  };
  if (variant.block_q != kWarpgroupRows) return want("block_q", variant.block_q);
  if (variant.block_kv != kWarpgroupRows) return want("block_kv", variant.block_kv);
  return {};
}

PlainKernel render_large_backward(const Problem& problem, const HopperBackwardVariant& variant,
                                  const KernelGradients& gradients, ConfigText config, const Architecture& architecture,
                                  const Templates& templates) {
  PlainKernel kernel{};
  kernel.threads = kThreads;
  kernel.argument_bytes =
      argument_bytes(problem, sizeof(HopperLargeBackwardArguments), alignof(HopperLargeBackwardArguments));
  kernel.smem_bytes = smem_bytes(problem, gradients.pass);
  config.use("Scores", kScoreType);
  config.use("Gradient", kGradientType);
  config.add("LargePass", "kPass", fmt::format("LargePass::{}", pass_name(gradients.pass)));
  config.add("int", "kPieces", pieces_of(problem, gradients.pass));
  Source& source = kernel.source;
  source = named_backward_source(problem, gradients, spell_variant(variant), architecture);
  source.device_code = templates.flatten(with_parts("kernels/hopper_large_backward.cuh", problem));
  source.generated = kGenerated + render_functions(problem) +
                     render_arguments("HopperLargeBackwardArguments", problem, false) +
                     render_matrices(problem, gradients.pass) + config.text() +
                     render({"LargeBackwardShape", kernel.smem_bytes, kernel.threads, kernel.argument_bytes}) +
                     fmt::format(
                         "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
                         "    {}(const __grid_constant__ Arguments args) {{\n"
                         "  extern __shared__ __align__(1024) char smem[];\n"  // a swizzle repeats after 1024 bytes
                         "  backward_hopper_large<Config>(args, ptx::cvta_to_shared(smem));\n"
                         "}}\n",
                         kernel.threads, source.entry);
  return kernel;
}

}  // namespace flashjit::generator
