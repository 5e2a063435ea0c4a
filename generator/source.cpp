// SPDX-License-Identifier: Apache-2.0
#include "generator/source.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "generator/arguments.h"
#include "generator/comments.h"
#include "generator/dtype.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/source_parts.h"

namespace flashjit::generator {
namespace {

std::string heading(std::string_view name) {
  return fmt::format(
      "// {}\n// Rendered by libflashjit. One self-contained file: NVRTC and nvcc compile it as it is.\n"
      "// Its comments stand in the templates, at the lines that #line names.\n",
      name);
}

// The names of the functions stand behind the kernel's own.
Source plain_source(std::string_view kernel, std::string_view entry, const Problem& functions,
                    const Architecture& architecture) {
  Source source;
  source.name = kernel;
  for (const FeatureRow& row : features())
    if (row.is_in(functions)) source.name += "-" + spell(row, functions);
  return named_source(source.name + fmt::format(".{}", architecture.name), entry);
}

const char* rotary_word(Rotary rotary) {
  constexpr const char* kWords[] = {"none", "halves", "neighbours"};
  return kWords[static_cast<std::size_t>(rotary)];
}
// Of a kernel's name.
std::string rotary_suffix(Rotary rotary, DType table) {
  return rotary == Rotary::none ? "" : fmt::format("-rotary-{}-{}", rotary_word(rotary), to_string(table));
}

const char* element_of_8_bits(DType dtype) { return dtype == DType::e5m2 ? "E5m2Element" : "E4m3Element"; }
const char* element_or_single(DType dtype) { return dtype == DType::f32 ? "Single" : generator::row_of(dtype).element; }

}  // namespace

Source named_source(std::string name, std::string_view entry) {
  Source source;
  source.name = std::move(name);
  source.entry = entry;
  source.heading = heading(source.name);
  return source;
}

PlainKernel plain_kernel(const PlainText& text, int threads, std::size_t argument_bytes,
                         const Architecture& architecture, const Templates& templates) {
  PlainKernel kernel{plain_source(text.name, text.entry, {}, architecture), threads, argument_bytes, 0,
                     text.blocks_of_sm};
  kernel.source.device_code = templates.flatten({text.device_code});
  kernel.source.generated =
      kGenerated +
      fmt::format(
          "static_assert(sizeof({0}) == {1}, \"host and device arguments disagree\");\n"
          "extern \"C\" __global__ void __launch_bounds__({2}{5}) {3}(const __grid_constant__ {0} args) {{\n"
          "  {4}.run();\n"
          "}}\n",
          text.arguments, argument_bytes, threads, text.entry, text.work,
          text.blocks_of_sm > 0 ? fmt::format(", {}", text.blocks_of_sm) : "");
  return kernel;
}

ConfigText::ConfigText(const Problem& problem, bool fetches) {
  use("Element", row_of(problem.dtype).element);
  add("int", "kHeadDim", problem.head_dim);
  add("int", "kHeadDimV", problem.head_dim_v);
  use("Arguments", "::Arguments");
  use("Masks", parts_in(Slot::mask, problem));
  use("ScoreParts", parts_in(Slot::score, problem, parts_for_attention(fetches)));
  use("Predicates", parts_in(Slot::predicate, problem));
  use("Blocks", parts_in(Slot::blocks, problem));
  use("SoftmaxParts", parts_in(Slot::softmax, problem));
  use("Dropouts", parts_in(Slot::probability, problem));
  use("Sequences", parts_in(Slot::sequences, problem));
  use("Keys", parts_in(Slot::keys, problem));
  use("Values", parts_in(Slot::values, problem));
  use("Stored", parts_in(Slot::stored, problem));
  use("Format", parts_in(Slot::format, problem));
  use("Products", parts_in(Slot::products, problem));
  use("Written", parts_in(Slot::written, problem));
}

std::string render(const PlanAssertion& assertion) {
  return fmt::format(
      "static_assert({0}<Config>::kSmemBytes == {1}, \"host plan and device layout disagree\");\n"
      "static_assert({0}<Config>::kThreads == {2}, \"host plan and device layout disagree\");\n"
      "static_assert(sizeof(Arguments) == {3}, \"host and device arguments disagree\");\n",
      assertion.shape, assertion.smem_bytes, assertion.threads, assertion.argument_bytes);
}

std::string Source::text() const {
  std::string text;
  text.reserve(heading.size() + device_code->size() + generated.size());
  return text.append(heading).append(*device_code).append(generated);
}

Source render_forward(const KernelSpec& spec, const Templates& templates) {
  Source source = named_source(spec.name(), "flashjit_forward");
  std::visit(
      [&](const auto& of_family) {
        source.device_code = templates.flatten(with_parts(template_of(spec.problem(), of_family), spec.problem(),
                                                          parts_for_attention(can_fetch(spec.problem(), of_family))));
        source.generated = kGenerated + render_functions(spec.problem()) +
                           without_comments(render_kernel(spec, of_family, source.entry));
      },
      spec.variant());
  return source;
}

std::vector<TurnKernel> render_beside(const KernelSpec& spec, const Templates& templates) {
  std::vector<TurnKernel> kernels;
  if (spec.problem().ragged) kernels.push_back({Turn::batch_plan, render_batch_plan(spec.architecture(), templates)});
  if (splits_kv(spec.variant()) && !(spec.problem().ragged && can_join_splits(spec.variant())))
    kernels.push_back({Turn::combine, render_combine(spec.problem(), spec.architecture(), templates)});
  return kernels;
}

Problem predicates_of(const Problem& problem) {
  Problem predicates;
  for (const FeatureRow& row : features())
    if (row.slot == Slot::predicate) predicates.*row.asked.function = problem.*row.asked.function;
  return predicates;
}

Problem users_functions_of(const Problem& problem) {
  Problem functions;
  functions.score = problem.score;
  functions.mask = problem.mask;
  return functions;
}

PlainKernel render_block_mask(const Problem& predicates, const Architecture& architecture, const Templates& templates) {
  constexpr int kThreads = 128;
  PlainKernel kernel{plain_source("block-mask", "flashjit_block_mask", predicates, architecture), kThreads,
                     argument_bytes(predicates, sizeof(BlockMaskMaker), alignof(BlockMaskMaker)), 0};
  kernel.source.device_code = templates.flatten(with_parts("kernels/block_mask.cuh", predicates));
  kernel.source.generated =
      kGenerated + render_functions(predicates) + render_arguments("BlockMaskMaker", predicates) +
      fmt::format(
          "struct Config {{\n"
          "  using Arguments = ::Arguments;\n"
          "  using Predicates = {};\n"
          "}};\n"
          "static_assert(sizeof(Arguments) == {}, \"host and device arguments disagree\");\n"
          "static_assert(kBlockMaskWarps * kWarpSize == {}, \"host and device threads disagree\");\n"
          "extern \"C\" __global__ void __launch_bounds__({}) {}"
          "(const __grid_constant__ Arguments args) {{\n"
          "  BlockMaskGranules<Config>(args).run();\n"
          "}}\n",
          parts_in(Slot::predicate, predicates), kernel.argument_bytes, kThreads, kThreads, kernel.source.entry);
  return kernel;
}

PlainKernel render_function_scores(const Problem& functions, bool differentiates, const Architecture& architecture,
                                   const Templates& templates) {
  constexpr int kThreads = 128;
  PlainKernel kernel{plain_source(differentiates ? "function-slopes" : "function-scores", "flashjit_function_scores",
                                  functions, architecture),
                     kThreads, argument_bytes(functions, sizeof(FunctionScores), alignof(FunctionScores)), 0};
  kernel.source.device_code =
      templates.flatten({differentiates ? "kernels/function_slopes.cuh" : "kernels/function_scores.cuh"});
  kernel.source.generated = kGenerated +
                            render_functions(functions, differentiates ? PartsFor::gradients : PartsFor::attention) +
                            render_arguments("FunctionScores", functions) +
                            fmt::format(
                                "static_assert(sizeof(Arguments) == {}, \"host and device arguments disagree\");\n"
                                "static_assert(kFunctionScoresThreads == {}, \"host and device threads disagree\");\n"
                                "extern \"C\" __global__ void __launch_bounds__({}) {}"
                                "(const __grid_constant__ Arguments args) {{\n"
                                "  FunctionScoresThread<Arguments, {}>{{args}}.run();\n"
                                "}}\n",
                                kernel.argument_bytes, kThreads, kThreads, kernel.source.entry,
                                differentiates ? "DualNumbers" : "RealNumbers");
  return kernel;
}

PlainKernel render_batch_plan(const Architecture& architecture, const Templates& templates) {
  return plain_kernel({"batch-plan", "flashjit_batch_plan", "kernels/batch_plan.cuh", "BatchPlanMaker",
                       "__shared__ BatchPlanShared shared;\n  BatchPlan(args, shared)"},
                      kBatchPlanThreads, sizeof(BatchPlanMaker), architecture, templates);
}

PlainKernel render_combine(const Problem& problem, const Architecture& architecture, const Templates& templates) {
  const bool is_wide = problem.head_dim_v > kMostUsualHeadDim;
  const int most_columns = is_wide ? kLargestHeadDimV : kMostUsualHeadDim;
  return plain_kernel({fmt::format("combine-{}{}", to_string(out_dtype(problem)), is_wide ? "-wide" : ""),
                       "flashjit_combine", "kernels/combine.cuh", "CombineArguments",
                       fmt::format("__shared__ CombineShared<{}> shared;\n  CombineRows<{}, {}, {}>(args, shared)",
                                   most_columns, problem.out_e4m3 ? "E4m3Element" : row_of(problem.dtype).element,
                                   most_columns, can_overlap_launches(architecture))},
                      kCombineThreads, sizeof(CombineArguments), architecture, templates);
}

PlainKernel render_merge(DType part, DType whole, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("merge-{}-{}", to_string(part), to_string(whole)), "flashjit_merge", "kernels/merge.cuh",
       "MergeArguments", fmt::format("MergeRows<{}, {}>(args)", element_or_single(part), element_or_single(whole))},
      kMergeThreads, sizeof(MergeArguments), architecture, templates);
}

PlainKernel render_sum(DType part, DType whole, const Architecture& architecture, const Templates& templates) {
  return plain_kernel(
      {fmt::format("sum-{}-{}", to_string(part), to_string(whole)), "flashjit_sum", "kernels/sum.cuh", "SumArguments",
       fmt::format("SumRows<{}, {}>(args)", element_or_single(part), element_or_single(whole))},
      kSumThreads, sizeof(SumArguments), architecture, templates);
}

bool converts_to_8_bits(const Architecture& architecture) noexcept {
  return architecture.major > 8 || (architecture.major == 8 && architecture.minor >= 9);
}

PlainKernel render_append(const AppendKernel& wanted, const Architecture& architecture, const Templates& templates) {
  const char* const word = rotary_word(wanted.rotary);
  std::string name = fmt::format("append-{}", to_string(wanted.dtype));
  if (wanted.cache != wanted.dtype) name += fmt::format("-{}", to_string(wanted.cache));
  name += rotary_suffix(wanted.rotary, wanted.table);
  const std::string types =
      fmt::format("{}, Rotary::{}, {}", row_of(wanted.dtype).element, word, element_or_single(wanted.table));
  constexpr const char* kEntry = "flashjit_append";
  if (wanted.cache == wanted.dtype)
    return plain_kernel({name, kEntry, "kernels/append.cuh", "AppendArguments",
                         fmt::format("__shared__ AppendShared shared;\n  AppendToken<{}>(args, shared)", types)},
                        kAppendThreads, sizeof(AppendArguments), architecture, templates);
  return plain_kernel(
      {name, kEntry, "kernels/append_scaled.cuh", "AppendScaledArguments",
       fmt::format(
           "__shared__ AppendShared shared;\n  AppendToken<{}, ScaledCache<{}>>(args.core, shared, {{args.scales}})",
           types, element_of_8_bits(wanted.cache))},
      kAppendThreads, sizeof(AppendScaledArguments), architecture, templates);
}

PlainKernel render_quantize(const QuantizeKernel& wanted, QuantizePass pass, const Architecture& architecture,
                            const Templates& templates) {
  constexpr const char* kPasses[] = {"maxima", "by-given", "by-maxima", "by-rows", "by-many-rows"};
  constexpr const char* kScalesFrom[] = {"given", "given", "maxima", "rows", "many_rows"};  // maxima need none
  const auto index = static_cast<std::size_t>(pass);
  std::string name = fmt::format("quantize-{}-{}-d{}", kPasses[index], to_string(wanted.dtype), wanted.head_dim);
  if (wanted.stored != DType::e4m3) name += fmt::format("-{}", to_string(wanted.stored));
  if (wanted.rotates) name += "-rotated";
  name += rotary_suffix(wanted.rotary, wanted.table);
  const std::string work = fmt::format(
      "__shared__ QuantizeShared shared;\n"
      "  extern __shared__ __align__(16) char tiles[];\n"
      "  {}<QuantizeConfig<{}, {}, {}, {}, Rotary::{}, {}, ScalesFrom::{}>>{{args, shared, tiles}}",
      pass == QuantizePass::maxima ? "LargestOfShares" : "QuantizeRows", row_of(wanted.dtype).element,
      element_of_8_bits(wanted.stored), wanted.head_dim, wanted.rotates, rotary_word(wanted.rotary),
      element_or_single(wanted.table), kScalesFrom[index]);
  const bool turns = wanted.rotary != Rotary::none;
  const bool keeps_more = pass == QuantizePass::by_many_rows || pass == QuantizePass::by_given;
  const bool is_small = wanted.head_dim <= 64 && wanted.head_dim % 32 == 0 && !turns;
  const bool is_large = wanted.head_dim > (turns && keeps_more ? 96 : 128);
  const int blocks_of_sm = is_small ? 3 : is_large ? 1 : 2;  // as their registers allow
  PlainKernel kernel = plain_kernel(
      {std::move(name), "flashjit_quantize", "kernels/quantize.cuh", "QuantizeArguments", work, blocks_of_sm},
      kQuantizeWarps * 32, sizeof(QuantizeArguments), architecture, templates);
  kernel.smem_bytes = kQuantizeWarps * quantize_warp_bytes(static_cast<int>(wanted.head_dim));
  return kernel;
}

Source render_mma_ceiling(DType dtype, const Architecture& architecture, const Templates& templates) {
  Source source =
      named_source(fmt::format("mma-ceiling-{}.{}", to_string(dtype), architecture.name), "flashjit_mma_ceiling");
  source.device_code = templates.flatten({"kernels/mma_ceiling.cuh"});
  source.generated =
      kGenerated + fmt::format(
                       "extern \"C\" __global__ void __launch_bounds__({}) {}(float* sink, int iterations) {{\n"
                       "  mma_ceiling<{}>(sink, iterations);\n"
                       "}}\n",
                       kCeilingThreads, source.entry, row_of(dtype).element);
  return source;
}

}  // namespace flashjit::generator
