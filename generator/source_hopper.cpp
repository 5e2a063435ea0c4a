// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "generator/family_space.h"
#include "generator/features.h"
#include "generator/source_parts.h"
#include "generator/variant_words.h"
#include "generator/wgmma.h"

namespace flashjit::generator {
namespace {

constexpr std::string_view kScoreMma = "ScoreProduct", kOutputMma = "OutputProduct";
constexpr int kWgmmaDepth = 16;

// Q K^T has a column for each key, P V one for each column of the output. K has its rows along N, V along K.
WgmmaProduct score_product(const Problem& problem, const HopperVariant& variant) {
  return {.columns = variant.block_kv,
          .steps = (problem.head_dim + kWgmmaDepth - 1) / kWgmmaDepth,
          .a_in_registers = false,
          .b_n_major = false,
          .adds = false};
}
WgmmaProduct output_product(const Problem& problem, const HopperVariant& variant) {
  return {.columns = problem.head_dim_v,
          .steps = variant.block_kv / kWgmmaDepth,
          .a_in_registers = variant.probabilities == ProbabilitySource::registers,
          .b_n_major = true,
          .adds = true};
}

std::string render_config(const Problem& problem, const HopperVariant& variant) {
  ConfigText config(problem);
  config.add("int", "kBlockQ", variant.block_q);
  config.add("int", "kBlockKv", variant.block_kv);
  config.add("int", "kStages", variant.stages);
  config.add("int", "kQStages", variant.q_stages);
  config.add("OutputSlot", "kOutputSlot", enumerator(kOutputs, variant.output));
  config.add("GemmSoftmax", "kOverlap", enumerator(kOverlaps, variant.overlap));
  config.add("PingPong", "kPingPong", enumerator(kPingPongs, variant.ping_pong));
  config.add("bool", "kWarpSpecialized", variant.warp_specialized);
  config.add("bool", "kProbabilitiesInRegisters", variant.probabilities == ProbabilitySource::registers);
  config.add("int", "kCluster", variant.cluster);
  config.add("Rescale", "kRescale", enumerator(kRescales, variant.rescale));
  config.add("Scheduler", "kScheduler", enumerator(kSchedulers, variant.scheduler));
  config.add("bool", "kLongestFirst", variant.order == TileOrder::longest_first);
  config.add("bool", "kFusedBoundary", variant.boundary == TileBoundary::fused);
  config.use("ScoreMma", kScoreMma);
  config.use("OutputMma", kOutputMma);
  return config.text();
}

std::string render_products(const Problem& problem, const HopperVariant& variant) {
  return render_wgmma(kScoreMma, problem.dtype, score_product(problem, variant)) +
         render_wgmma(kOutputMma, problem.dtype, output_product(problem, variant));
}

}  // namespace

const char* template_of(const HopperVariant& variant) {
  return serves_ablation(variant) ? "kernels/hopper_ablation.cuh" : "kernels/hopper_forward.cuh";
}

std::string render_kernel(const KernelSpec& spec, const HopperVariant& variant, std::string_view entry) {
  const Plan& plan = spec.plan();
  const std::string cluster = variant.cluster == 1 ? "" : fmt::format(" __cluster_dims__({}, 1, 1)", variant.cluster);
  return render_arguments("HopperArguments", spec.problem()) + render_products(spec.problem(), variant) +
         render_config(spec.problem(), variant) +
         render({"HopperShape", plan.smem_bytes, plan.threads, plan.argument_bytes}) +
         fmt::format(
             "extern \"C\" __global__ void __launch_bounds__({}, 1){}\n"
             "    {}(const __grid_constant__ Arguments args) {{\n"
             "  extern __shared__ __align__(1024) char smem[];\n"  // a swizzle repeats after 1024 bytes
             "  {}<Config>(args, ptx::cvta_to_shared(smem));\n"
             "}}\n",
             plan.threads, cluster, entry, serves_ablation(variant) ? "forward_hopper_ablation" : "forward_hopper");
}

}  // namespace flashjit::generator
