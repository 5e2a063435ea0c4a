// SPDX-License-Identifier: Apache-2.0
#include "cli/io/problem_options.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <sstream>

#include "cli/io/command.h"
#include "cli/io/device.h"
#include "cli/io/for_option.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

constexpr int kHeadDimStep = 8, kLargestHeadDim = 256;

const std::vector<std::string>& dtype_words() {
  static const std::vector<std::string> words = {"bf16", "f16"};
  return words;
}

const std::vector<std::string>& mask_words() {
  static const std::vector<std::string> words = {"full", "causal"};
  return words;
}

bool is_causal(std::string_view mask) { return mask == "causal"; }

AttentionOptions with_masks(bool causal, const Window& window) {
  AttentionOptions options;
  options.causal = causal;
  options.window = window;
  return options;
}

CLI::Option* add_window_option(CLI::App* subcommand, std::string& window) {
  return add_option(
      subcommand, "--window", window, "LEFT,RIGHT",
      "Of these, only key i + seqlen_kv - seqlen_q and so many before and after it; -1: all [default: -1,-1]");
}

// Half of "192x128", or the whole of "64".
int parse_head_dim(std::string_view name, std::string_view text, std::string_view item) {
  int value = 0;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
  if (error != std::errc() || end != item.data() + item.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be like 64, or 192x128 for 192 of q and k and 128 of v, was '{}'", name, text));
  }
  if (value < kHeadDimStep || value > kLargestHeadDim || value % kHeadDimStep != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be a multiple of {} from {} to {}, was {}{}", name, kHeadDimStep, kHeadDimStep,
                            kLargestHeadDim, value, item == text ? "" : fmt::format(" in '{}'", text)));
  }
  return value;
}

HeadDims parse_head_dim_pair(std::string_view name, std::string_view text) {
  const std::size_t cross = text.find('x');
  const int head_dim = parse_head_dim(name, text, text.substr(0, cross));
  return {head_dim, cross == std::string_view::npos ? head_dim : parse_head_dim(name, text, text.substr(cross + 1))};
}

std::vector<std::string> split_parts(const std::string& variant) {
  std::vector<std::string> parts;
  std::istringstream stream(variant);
  for (std::string part; std::getline(stream, part, '-');) parts.push_back(part);
  return parts;
}

}  // namespace

CLI::Option* add_dtype_option(CLI::App* subcommand, std::string& dtype, const std::string& help) {
  return add_choice(subcommand, "--dtype", dtype, dtype_words(), help);
}

void add_mask_options(CLI::App* subcommand, MaskOptions& options) {
  add_choice(subcommand, "--mask", options.mask, mask_words(),
             "Query i sees all keys, or causal: those up to i + seqlen_kv - seqlen_q");
  add_window_option(subcommand, options.window);
}

AttentionOptions MaskOptions::options() const { return with_masks(is_causal(mask), parse_window("--window", window)); }

void add_problem_options(CLI::App* subcommand, ProblemOptions& options) {
  add_dtype_option(subcommand, options.dtype, "Precision of q, k, v and the output");
  add_option(subcommand, "--head-dim", options.head_dim, "D",
             "Head dimension, a multiple of 8 from 8 to 256; 192x128 is 192 for q and k and 128 for v");
  add_mask_options(subcommand, options.masks);
}

Problem ProblemOptions::problem() const {
  const HeadDims dims = parse_head_dim_pair("--head-dim", head_dim);
  return problem_of(parse_dtype(dtype), dims.head_dim, dims.head_dim_v, masks.options());
}

ProblemListOptions add_problem_lists(CLI::App* subcommand, ProblemLists& lists) {
  return {add_option(subcommand, "--dtype", lists.dtypes, "LIST", "Precisions: bf16, f16"),
          add_option(subcommand, "--head-dim", lists.head_dims, "LIST",
                     "Head dimensions, or all; 192x128 is 192 for q and k and 128 for v"),
          add_option(subcommand, "--mask", lists.masks, "LIST", "Masks: full, causal"),
          add_window_option(subcommand, lists.window)};
}

std::vector<Problem> ProblemLists::problems() const {
  return combine(parse_dtypes("--dtype", dtypes), parse_head_dims("--head-dim", head_dims),
                 parse_masks("--mask", masks), parse_window("--window", window));
}

AttentionOptions ProblemLists::options(const Problem& problem) const {
  return with_masks(problem.causal, parse_window("--window", window));
}

void add_architecture_option(CLI::App* subcommand, std::string& architecture) {
  add_option(subcommand, "--arch", architecture, kArchType,
             "Target, for example sm_90a; 'flashjit info' lists them [default: that of the first GPU]");
}

std::string choose_architecture(const Engine& engine, const std::string& architecture) {
  if (!architecture.empty()) return known_architecture(architecture);
  const std::optional<DeviceInfo> gpu = usable_device(engine.system());
  if (gpu) return gpu->architecture;
  throw Error(ErrorCode::invalid_argument, "--arch: must be given where there is no GPU, for example --arch sm_90a");
}

std::vector<DType> parse_dtypes(std::string_view name, std::string_view text) {
  std::vector<DType> dtypes;
  for (const std::string& item : split_list(name, text)) {
    require_word(name, item, dtype_words());
    dtypes.push_back(parse_dtype(item));
  }
  return dtypes;
}

std::vector<HeadDims> parse_head_dims(std::string_view name, std::string_view text) {
  std::vector<HeadDims> dims;
  if (text == "all") {
    for (int d = kHeadDimStep; d <= kLargestHeadDim; d += kHeadDimStep) dims.push_back({d, d});
    return dims;
  }
  for (const std::string& item : split_list(name, text)) dims.push_back(parse_head_dim_pair(name, item));
  return dims;
}

std::vector<bool> parse_masks(std::string_view name, std::string_view text) {
  std::vector<bool> causal;
  for (const std::string& item : split_list(name, text)) {
    if (item == "both") {  // as it was spelled before there were lists
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must be full,causal for both of them, was 'both'", name));
    }
    require_word(name, item, mask_words());
    causal.push_back(is_causal(item));
  }
  return causal;
}

Window parse_window(std::string_view name, std::string_view text) {
  if (text.empty()) return {};
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: must be like 1024,0 or -1,64: keys before and after, was '{}'", name, text));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return {parse_integer(fmt::format("{}: left", name), text.substr(0, comma), -1, kMost),
          parse_integer(fmt::format("{}: right", name), text.substr(comma + 1), -1, kMost)};
}

std::vector<std::string> parse_architectures(const std::string& text) {
  std::vector<std::string> names;
  if (text == "all") {
    for (const Architecture& architecture : architectures()) names.push_back(architecture.name);
    return names;
  }
  for (const std::string& item : split_list("--arch", text)) names.push_back(known_architecture(item));
  return names;
}

std::vector<std::string> parse_wanted_architectures(const std::string& text) {
  return text.empty() || text == "all" ? std::vector<std::string>() : parse_architectures(text);
}

std::vector<std::string> parse_architectures(const Engine& engine, const std::string& text) {
  return text.empty() ? std::vector{choose_architecture(engine, text)} : parse_architectures(text);
}

std::vector<Problem> combine(const std::vector<DType>& dtypes, const std::vector<HeadDims>& head_dims,
                             const std::vector<bool>& causal, const Window& window) {
  std::vector<Problem> problems;
  for (const DType dtype : dtypes) {
    for (const HeadDims& dims : head_dims) {
      for (const bool masked : causal) {
        const Problem problem = problem_of(dtype, dims.head_dim, dims.head_dim_v, with_masks(masked, window));
        if (std::find(problems.begin(), problems.end(), problem) == problems.end()) problems.push_back(problem);
      }
    }
  }
  return problems;
}

std::vector<Variant> chosen_variants(const Engine& engine, const Problem& problem, const std::string& architecture) {
  std::vector<Variant> variants = engine.default_variants(problem, architecture);
  for (const Variant& variant : engine.recorded_variants(problem, architecture)) {
    if (std::find(variants.begin(), variants.end(), variant) == variants.end()) variants.push_back(variant);
  }
  return variants;
}

namespace {

// With what is in the place of the first part that no variant has, if it is like one that some variant has.
Variant parse_known_variant(const Engine& engine, const std::string& text, const Variant& base, const Problem& problem,
                            const std::string& architecture) {
  try {
    return parse_variant(text, base);
  } catch (const Error& error) {
    std::set<std::string> known;
    for (const VariantExplanation& each : engine.explain_variants(problem, architecture))
      for (std::string& part : split_parts(to_string(each.variant))) known.insert(std::move(part));
    for (const std::string& part : split_parts(text))
      if (known.count(part) == 0)
        throw Error(error.code(), error.what() + did_you_mean(part, {known.begin(), known.end()}));
    throw;
  }
}

}  // namespace

Variant choose_variant(const Engine& engine, const std::string& text, const Problem& problem,
                       const std::string& architecture) {
  const Variant base = engine.default_variant(problem, architecture);
  if (text == "default") return base;
  return for_option("--variant", [&] {
    const Variant variant = parse_known_variant(engine, text, base, problem, architecture);
    engine.render(problem, variant, architecture);  // refuses what is not legal
    return variant;
  });
}

}  // namespace flashjit::cli
