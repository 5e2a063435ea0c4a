// SPDX-License-Identifier: Apache-2.0
// All that the host knows of the Hopper forward kernel of large heads: what is legal, the plan that follows, what is
// worth trying, and its source. docs/kernels/large_heads.md has the reasons.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "generator/arguments.h"
#include "generator/features.h"
#include "generator/kernels/hopper.h"
#include "generator/matrices.h"
#include "generator/tunables.h"

namespace flashjit::generator {
namespace {

// --- The plan --------------------------------------------------------------------------------------------------------

constexpr int kStreams = 2;
constexpr int kBlockKeys = 64;
constexpr int kWgmmaColumns = 16;              // of a step along the head dim
constexpr int kPieceBytes = kBlockKeys * 128;  // of a ring's slots
constexpr int kMostPieces = 12;                // of a ring: what comes later is not waited for
constexpr int kSmemOfBlock = 227 * 1024;       // on sm_90a, where alone the kernel runs
constexpr int kSmallBytes = 1024;              // barriers, tiles and notes
constexpr int kMaximumBytes = 8;               // of a row, and the factor beside it
constexpr int kProbabilityBytes = kWarpgroupRows * kBlockKeys * kElementBytes;  // of a stream
constexpr int kPlainRegisters = 56;  // addresses, descriptors, softmax and the loop

// The output's, of a stream: LargeShape::kOutputColumns.
int columns_of_stream(const Problem& problem) {
  return round_up((problem.head_dim_v + kStreams - 1) / kStreams, kWgmmaColumns);
}
// Of a box that brings values, and of one that takes output away, which ends where the stream's columns do.
Panels value_panels(const Problem& problem) { return panels_of(columns_of_stream(problem)); }
int store_columns(const Problem& problem) {
  const int columns = columns_of_stream(problem);
  return std::min(columns & -columns, 64);
}

// Values come so many keys at a time: LargeShape::kKeysOfPiece.
int keys_of_piece(const Problem& problem) {
  const int fit = kPieceBytes / value_panels(problem).row_bytes() / kWgmmaColumns * kWgmmaColumns;
  return std::min(fit & -fit, kBlockKeys);
}

int query_bytes(const Problem& problem) {
  const int output = kStreams * columns_of_stream(problem) * kElementBytes;
  return round_up(kWarpgroupRows * std::max(q_panels_of(problem).row_bytes(), output), kSwizzleBytes);
}

// But for the rings.
int fixed_bytes(const Problem& problem) {
  return query_bytes(problem) + kStreams * (kProbabilityBytes + kWarpgroupRows * kMaximumBytes) + kSmallBytes;
}

// Of a ring: as many as there is room for.
int pieces_of(const Problem& problem) {
  return std::min((kSmemOfBlock - fixed_bytes(problem)) / (kStreams * kPieceBytes), kMostPieces);
}

// --- What is legal ---------------------------------------------------------------------------------------------------

// Of the choices that other kernels have most are made.
std::string why_not_of_large(const HopperVariant& v) {
  const auto want = [](std::string_view what, std::string_view required, const auto& was) {
    return must(what, fmt::format("{} for head dims above {}", required, kMostUsualHeadDim), was);
  };
  if (v.block_q != kWarpgroupRows) return want("block_q", "64", v.block_q);
  if (v.block_kv != kBlockKeys) return want("block_kv", "64", v.block_kv);
  if (v.stages != 1) return want("stages", "1", v.stages);
  if (v.q_stages != 1) return want("q_stages", "1", v.q_stages);
  if (v.output != OutputSlot::query) return want("output", "oquery", "half or whole");
  if (v.overlap != GemmSoftmax::two_stage) return want("overlap", "2stage", "serial or 3stage");
  if (v.ping_pong != PingPong::off) return want("ping_pong", "ppoff", "ppgemm or ppsoftmax");
  if (!v.warp_specialized) return want("warp_specialized", "ws", "nows");
  if (v.probabilities != ProbabilitySource::registers) return want("probabilities", "pregs", "psmem");
  if (v.cluster != 1 && v.cluster != 2) return want("cluster", "1 or 2", v.cluster);
  if (v.rescale == Rescale::lazy) return want("rescale", "always or rare", "lazy");
  if (v.boundary != TileBoundary::split) return want("boundary", "split", "fused");
  if (v.cluster == 2 && v.scheduler == Scheduler::dynamic)
    return must("scheduler", "single or fixed with cl2", "dynamic");
  return {};
}

// What the kernel has no part for.
std::string why_not_served(const Problem& problem, const HopperVariant& v) {
  if (problem.k_rotary) return must("family", "mma beside k_rotary", "hopper");
  // Blocks of a cluster share K and V, and so would have to list the same blocks.
  return problem.block_mask && v.cluster != 1 ? must("cluster", "1 with a block mask", v.cluster) : "";
}

// --- The source ------------------------------------------------------------------------------------------------------

constexpr std::string_view kScoreType = "ScoreMatrix", kProbabilityType = "ProbabilityMatrix",
                           kOutputType = "OutputMatrix";

std::string render_matrices(const Problem& problem, bool reads_output) {
  const bool drops = has_part(Slot::probability, problem);
  const int keys = keys_of_piece(problem);
  return render(ScoreMatrix{.type = kScoreType,
                            .registers = "s",
                            .dtype = problem.dtype,
                            .keys = kBlockKeys,
                            .steps = (problem.head_dim + kWgmmaColumns - 1) / kWgmmaColumns,
                            .key_row_bytes = q_panels_of(problem).columns * kElementBytes,
                            .transforms = has_part(Slot::score, problem),
                            .probabilities = drops ? "p" : "",
                            .steps_of_piece = q_panels_of(problem).columns / kWgmmaColumns}) +
         render(ProbabilityMatrix{.type = kProbabilityType,
                                  .registers = "p",
                                  .dtype = problem.dtype,
                                  .keys = kBlockKeys,
                                  .scores = drops ? "" : "s",
                                  .reads = true}) +
         render(OutputMatrix{.type = kOutputType,
                             .registers = "o",
                             .dtype = problem.dtype,
                             .columns = columns_of_stream(problem),
                             .steps = keys / kWgmmaColumns,
                             .probabilities = "p",
                             .reads = reads_output,
                             .pieces = kBlockKeys / keys});
}

}  // namespace

Plan make_large_plan(const Problem& problem, const HopperVariant& variant) {
  Plan plan{};
  plan.threads = (kStreams + 1) * kWarpgroupThreads;
  plan.smem_bytes = fixed_bytes(problem) + kStreams * pieces_of(problem) * kPieceBytes;
  const int scores = kBlockKeys / 2, probabilities = kBlockKeys / 4;
  plan.registers = columns_of_stream(problem) / 2 + scores + probabilities + kPlainRegisters;
  plan.argument_bytes = argument_bytes(
      problem, sizeof(HopperArguments) + (variant.split_kv ? sizeof(SplitArguments) : 0), alignof(HopperArguments));
  const int columns = q_panels_of(problem).columns;
  plan.box_columns = {columns, columns, value_panels(problem).columns, store_columns(problem)};
  plan.box_keys_of_values = keys_of_piece(problem);
  return plan;
}

std::string why_illegal_large(const Problem& problem, const HopperVariant& variant) {
  if (std::string why = why_not_of_large(variant); !why.empty()) return why;
  return why_not_served(problem, variant);
}

std::vector<Candidate> large_candidates(const Problem& problem) {
  constexpr const char* kChoices[] = {
      "rare-dynamic",   "rare-single",     "rare-fixed",          "always-dynamic",
      "cl2-rare-fixed", "cl2-rare-single", "rare-single-splitkv", "cl2-rare-single-splitkv"};
  std::vector<Candidate> candidates;
  HopperVariant plain = std::get<HopperVariant>(parse_variant("hopper-q64-kv64-s1-qs1-oquery-2stage-ppoff"));
  plain.order = order_for(problem);
  for (const char* choice : kChoices) candidates.push_back({parse_variant(choice, plain), {}});
  return candidates;
}

std::string render_large_kernel(const KernelSpec& spec, const HopperVariant& variant, std::string_view entry,
                                ConfigText config) {
  const Plan& plan = spec.plan();
  config.add("int", "kPieces", pieces_of(spec.problem()));
  config.use("Scores", kScoreType);
  config.use("Probabilities", kProbabilityType);
  config.use("Output", kOutputType);
  const std::string cluster = variant.cluster == 1 ? "" : fmt::format(" __cluster_dims__({}, 1, 1)", variant.cluster);
  return render_arguments("HopperArguments", spec.problem(), variant.split_kv) +
         render_matrices(spec.problem(), variant.split_kv) + config.text() +
         render({"LargeShape", plan.smem_bytes, plan.threads, plan.argument_bytes}) +
         fmt::format(
             "extern \"C\" __global__ void __launch_bounds__({}, 1){}\n"
             "    {}(const __grid_constant__ Arguments args) {{\n"
             "  extern __shared__ __align__(1024) char smem[];\n"  // a swizzle repeats after 1024 bytes
             "  forward_hopper_large<Config>(args, ptx::cvta_to_shared(smem));\n"
             "}}\n",
             plan.threads, cluster, entry);
}

}  // namespace flashjit::generator
