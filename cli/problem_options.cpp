// SPDX-License-Identifier: Apache-2.0
#include "cli/problem_options.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/for_option.h"

namespace flashjit::cli {
namespace {

constexpr int kHeadDimStep = 8, kLargestHeadDim = 256;

DType parse_kernel_dtype(const std::string& text) {
  if (text == "bf16") return DType::bf16;
  if (text == "f16") return DType::f16;
  throw Error(ErrorCode::invalid_argument, fmt::format("--dtype: must be bf16 or f16, was '{}'", text));
}

void require_head_dim(const char* option, int head_dim) {
  if (head_dim < kHeadDimStep || head_dim > kLargestHeadDim || head_dim % kHeadDimStep != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be a multiple of 8 from 8 to 256, was {}", option, head_dim));
  }
}

int parse_head_dim(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--head-dim: must be numbers such as 64 or 192x128 (q and k, then v), was '{}'", text));
  }
  require_head_dim("--head-dim", value);
  return value;
}

std::vector<std::string> split(const char* option, const std::string& text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    if (items.back().empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must be a list separated by commas, was '{}'", option, text));
    }
    begin = end + 1;
  }
  return items;
}

std::string known_architecture(const std::string& name) {
  return for_option("--arch", [&] { return std::string(find_architecture(name).name); });
}

}  // namespace

void add_problem_options(CLI::App* subcommand, ProblemOptions& options) {
  add_option(subcommand, "--dtype", options.dtype, "DTYPE", "Precision of q, k, v and the output: bf16 or f16");
  add_option(subcommand, "--head-dim", options.head_dim, "N",
             "Head dimension of q and k: a multiple of 8 from 8 to 256");
  add_option(subcommand, "--head-dim-v", options.head_dim_v, "N",
             "Head dimension of v and the output [default: that of q and k]");
  add_flag(subcommand, "--causal", options.causal, "Query i sees the keys up to i + seqlen_kv - seqlen_q");
}

Problem ProblemOptions::problem() const {
  Problem problem;
  problem.dtype = parse_kernel_dtype(dtype);
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v.value_or(head_dim);
  problem.causal = causal;
  require_head_dim("--head-dim", problem.head_dim);
  require_head_dim("--head-dim-v", problem.head_dim_v);
  validate(problem);
  return problem;
}

void add_architecture_option(CLI::App* subcommand, std::string& architecture) {
  add_option(subcommand, "--arch", architecture, "ARCH",
             "Target, for example sm_90a; 'flashjit info' lists them [default: that of the first GPU]");
}

std::string choose_architecture(const Engine& engine, const std::string& architecture) {
  if (!architecture.empty()) return known_architecture(architecture);
  const std::optional<DeviceInfo> gpu = usable_device(engine.system());
  if (gpu) return gpu->architecture;
  throw Error(ErrorCode::invalid_argument, "--arch: must be given where there is no GPU, for example --arch sm_90a");
}

std::vector<DType> parse_dtypes(const std::string& text) {
  std::vector<DType> dtypes;
  for (const std::string& item : split("--dtype", text)) dtypes.push_back(parse_kernel_dtype(item));
  return dtypes;
}

std::vector<HeadDims> parse_head_dims(const std::string& text) {
  std::vector<HeadDims> dims;
  if (text == "all") {
    for (int d = kHeadDimStep; d <= kLargestHeadDim; d += kHeadDimStep) dims.push_back({d, d});
    return dims;
  }
  for (const std::string& item : split("--head-dim", text)) {
    const std::size_t cross = item.find('x');
    const int head_dim = parse_head_dim(std::string_view(item).substr(0, cross));
    dims.push_back(
        {head_dim, cross == std::string::npos ? head_dim : parse_head_dim(std::string_view(item).substr(cross + 1))});
  }
  return dims;
}

std::vector<bool> parse_causal(const std::string& text) {
  if (text == "no") return {false};
  if (text == "yes") return {true};
  if (text == "both") return {false, true};
  throw Error(ErrorCode::invalid_argument, fmt::format("--causal: must be no, yes or both, was '{}'", text));
}

std::vector<std::string> parse_architectures(const std::string& text) {
  std::vector<std::string> names;
  if (text == "all") {
    for (const Architecture& architecture : architectures()) names.push_back(architecture.name);
    return names;
  }
  for (const std::string& item : split("--arch", text)) names.push_back(known_architecture(item));
  return names;
}

std::vector<std::string> parse_architectures(const Engine& engine, const std::string& text) {
  return text.empty() ? std::vector{choose_architecture(engine, text)} : parse_architectures(text);
}

std::vector<Problem> combine(const std::vector<DType>& dtypes, const std::vector<HeadDims>& head_dims,
                             const std::vector<bool>& causal) {
  std::vector<Problem> problems;
  for (const DType dtype : dtypes) {
    for (const HeadDims& dims : head_dims) {
      for (const bool masked : causal) {
        const Problem problem{dtype, dims.head_dim, dims.head_dim_v, masked};
        if (std::find(problems.begin(), problems.end(), problem) == problems.end()) problems.push_back(problem);
      }
    }
  }
  return problems;
}

std::vector<Variant> default_variants(const Engine& engine, const Problem& problem, const std::string& architecture) {
  std::vector<Variant> variants;
  const auto add = [&](const Variant& variant) {
    if (std::find(variants.begin(), variants.end(), variant) == variants.end()) variants.push_back(variant);
  };
  for (const LengthRange range : kLengthRanges) add(engine.default_variant(problem, architecture, range));
  add(engine.default_without_tma(problem, architecture));
  return variants;
}

std::vector<Variant> chosen_variants(const Engine& engine, const Problem& problem, const std::string& architecture) {
  std::vector<Variant> variants = default_variants(engine, problem, architecture);
  for (const Variant& variant : engine.recorded_variants(problem, architecture)) {
    if (std::find(variants.begin(), variants.end(), variant) == variants.end()) variants.push_back(variant);
  }
  return variants;
}

Variant choose_variant(const Engine& engine, const std::string& text, const Problem& problem,
                       const std::string& architecture) {
  const Variant base = engine.default_variant(problem, architecture);
  if (text == "default") return base;
  return for_option("--variant", [&] {
    const Variant variant = parse_variant(text, base);
    engine.render(problem, variant, architecture);  // refuses what is not legal
    return variant;
  });
}

}  // namespace flashjit::cli
