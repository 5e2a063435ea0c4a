// SPDX-License-Identifier: Apache-2.0
#include "generator/features.h"
#include "generator/source_parts.h"
#include "generator/variant_words.h"

namespace flashjit::generator {
namespace {

std::string render_config(const Problem& problem, const MmaVariant& variant) {
  ConfigText config(problem);
  config.add("int", "kBlockQ", variant.block_q);
  config.add("int", "kBlockKv", variant.block_kv);
  config.add("int", "kWarps", variant.warps);
  config.add("int", "kKStages", variant.k_stages);
  config.add("int", "kVStages", variant.v_stages);
  config.add("Pipeline", "kPipeline", enumerator(kPipelines, variant.pipeline));
  config.add("bool", "kSwizzle", variant.layout == SmemLayout::swizzle);
  config.add("int", "kLdmatrix", variant.ldmatrix);
  config.add("bool", "kQueryInRegisters", variant.query == QuerySource::registers);
  config.add("bool", "kRareRescale", variant.rescale == Rescale::rare);
  config.add("bool", "kLongestFirst", variant.order == TileOrder::longest_first);
  return config.text();
}

}  // namespace

const char* template_of(const MmaVariant&) { return "kernels/mma_forward.cuh"; }

std::string render_kernel(const KernelSpec& spec, const MmaVariant& variant, std::string_view entry) {
  const Plan& plan = spec.plan();
  return render_arguments("MmaArguments", spec.problem()) + render_config(spec.problem(), variant) +
         render({"ForwardShape", plan.smem_bytes, plan.threads, plan.argument_bytes}) +
         fmt::format(
             "extern \"C\" __global__ void __launch_bounds__({}, {})\n"
             "    {}(const __grid_constant__ Arguments args) {{\n"
             "  extern __shared__ __align__(128) char smem[];\n"
             "  bool far = false;\n"
             "  while (!ForwardMma<Config>(args, ptx::cvta_to_shared(smem), far).run()) far = true;\n"
             "}}\n",
             plan.threads, variant.ctas_per_sm, entry);
}

}  // namespace flashjit::generator
