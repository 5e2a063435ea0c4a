// SPDX-License-Identifier: Apache-2.0
#include "generator/source.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "generator/comments.h"
#include "generator/dtype.h"
#include "generator/features.h"
#include "generator/source_parts.h"

namespace flashjit::generator {
namespace {

constexpr const char* kGenerated = "#line 1 \"generated\"\n";

std::string heading(std::string_view name) {
  return fmt::format(
      "// {}\n// Rendered by libflashjit. One self-contained file: NVRTC and nvcc compile it as it is.\n"
      "// Its comments stand in the templates, at the lines that #line names.\n",
      name);
}

}  // namespace

ConfigText::ConfigText(const Problem& problem) {
  use("Element", row_of(problem.dtype).element);
  add("int", "kHeadDim", problem.head_dim);
  add("int", "kHeadDimV", problem.head_dim_v);
  use("Arguments", "::Arguments");
  use("Masks", parts_in(Slot::mask, problem));
  use("ScoreParts", parts_in(Slot::score, problem));
  use("SoftmaxParts", parts_in(Slot::softmax, problem));
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
  Source source;
  source.name = spec.name();
  source.entry = "flashjit_forward";
  source.heading = heading(source.name);
  std::visit(
      [&](const auto& of_family) {
        source.device_code = templates.flatten(with_parts(template_of(of_family), spec.problem()));
        source.generated = kGenerated + without_comments(render_kernel(spec, of_family, source.entry));
      },
      spec.variant());
  return source;
}

Source render_mma_ceiling(DType dtype, const Architecture& architecture, const Templates& templates) {
  Source source;
  source.name = fmt::format("mma-ceiling-{}.{}", to_string(dtype), architecture.name);
  source.entry = "flashjit_mma_ceiling";
  source.heading = heading(source.name);
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
