// SPDX-License-Identifier: Apache-2.0
#include "generator/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "flashjit/error.h"
#include "generator/source_parts.h"
#include "generator/variant_space.h"

namespace flashjit::generator {
namespace {

constexpr std::string_view kInclude = "#include \"", kPragmaOnce = "#pragma once";

// Where the next line with a directive begins, from begin on; the end of the text when there is none. Searching for the
// rare '#' takes a quarter of the time that cutting the text into lines takes, and each look-up in the cache renders.
std::size_t find_directive(std::string_view text, std::size_t begin) {
  std::size_t at = text.find('#', begin);
  while (at != std::string_view::npos && at != 0 && text[at - 1] != '\n') at = text.find('#', at + 1);
  return std::min(at, text.size());
}

// One template file with its includes put in place, each file once. #line keeps the files' own names and lines, so that
// an error of NVRTC and a line of a profile point into templates/.
void append_file(const Templates& templates, const std::string& path, std::set<std::string>& seen, std::string& out) {
  if (!seen.insert(path).second) return;
  const auto file = templates.find(path);
  if (file == templates.end())
    throw Error(ErrorCode::invalid_argument, fmt::format("templates: must hold {}, which another one includes", path));
  out += fmt::format("#line 1 \"templates/{}\"\n", path);
  const std::string_view text = file->second;
  std::size_t counted = 0;
  std::ptrdiff_t lines = 1;  // up to counted
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t directive = find_directive(text, begin);
    out += text.substr(begin, directive - begin);
    begin = std::min(text.find('\n', directive), text.size() - 1) + 1;
    const std::string_view line = text.substr(directive, begin - directive);
    if (line.starts_with(kInclude)) {
      const std::string_view name = line.substr(kInclude.size(), line.rfind('"') - kInclude.size());
      append_file(templates, std::string(name), seen, out);
      lines += std::count(text.data() + counted, text.data() + begin, '\n');
      counted = begin;
      out += fmt::format("#line {} \"templates/{}\"\n", lines, path);
    } else if (line.starts_with(kPragmaOnce)) {
      out += '\n';
    } else {
      out += line;
    }
  }
}

std::string heading(std::string_view name) {
  return fmt::format(
      "// {}\n// Rendered by libflashjit. One self-contained file: NVRTC and nvcc compile it as it is.\n", name);
}

}  // namespace

std::string flatten(const Templates& templates, const std::string& path) {
  constexpr std::size_t kUsualBytes = std::size_t{120} << 10;
  std::string out;
  out.reserve(kUsualBytes);
  std::set<std::string> seen;
  append_file(templates, path, seen, out);
  return out;
}

const char* element(DType dtype) { return dtype == DType::bf16 ? "BFloat16" : "Half"; }

ConfigText::ConfigText(const Problem& problem) {
  use("Element", element(problem.dtype));
  add("int", "kHeadDim", problem.head_dim);
  add("int", "kHeadDimV", problem.head_dim_v);
  add("bool", "kCausal", problem.causal);
}

std::string render(const PlanAssertion& assertion) {
  return fmt::format(
      "static_assert({0}<Config>::kSmemBytes == {1}, \"host plan and device layout disagree\");\n"
      "static_assert({0}<Config>::kThreads == {2}, \"host plan and device layout disagree\");\n"
      "static_assert(sizeof({3}) == {4}, \"host and device arguments disagree\");\n",
      assertion.shape, assertion.smem_bytes, assertion.threads, assertion.arguments, assertion.arguments_bytes);
}

Source render_forward(const Problem& problem, const Variant& variant, const Architecture& architecture,
                      const Templates& templates) {
  require_legal(problem, variant, architecture);
  Source source;
  source.name = fmt::format("{}.{}.{}", to_string(problem), to_string(variant), architecture.name);
  source.entry = "flashjit_forward";
  source.text =
      heading(source.name) +
      std::visit([&](const auto& of_family) { return render_kernel(problem, of_family, templates, source.entry); },
                 variant);
  return source;
}

Source render_mma_ceiling(DType dtype, const Architecture& architecture, const Templates& templates) {
  Source source;
  source.name = fmt::format("mma-ceiling-{}.{}", to_string(dtype), architecture.name);
  source.entry = "flashjit_mma_ceiling";
  source.text = heading(source.name) + flatten(templates, "kernels/mma_ceiling.cuh") + "#line 1 \"generated\"\n" +
                fmt::format(
                    "extern \"C\" __global__ void __launch_bounds__({}) {}(float* sink, int iterations) {{\n"
                    "  mma_ceiling<{}>(sink, iterations);\n"
                    "}}\n",
                    kCeilingThreads, source.entry, element(dtype));
  return source;
}

}  // namespace flashjit::generator
