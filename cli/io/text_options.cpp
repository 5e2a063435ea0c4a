// SPDX-License-Identifier: Apache-2.0
#include "cli/io/text_options.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/io/for_option.h"
#include "cli/io/npy.h"
#include "cli/io/problem_options.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

bool is_name_part(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Masks by their names, or an attempt at it; texts have more than letters and commas.
bool is_word(const std::string& mask) {
  return std::all_of(mask.begin(), mask.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == ','; });
}

void check_mask(const std::string& option, const std::string& mask) {
  if (is_word(mask)) require_word(option, mask, {"full", "causal"});
}
void check_mask_list(const std::string& option, const std::string& mask) {
  if (is_word(mask)) parse_masks(option, mask);
}

// What --mask was given.
struct WordsAndText {
  std::optional<std::string> words, text;
};
WordsAndText split_masks(const std::vector<std::string>& masks) {
  WordsAndText split;
  for (const std::string& each : masks) {
    std::optional<std::string>& of_kind = is_word(each) ? split.words : split.text;
    if (of_kind)
      refuse(fmt::format("--mask: must be at most one word and one text, was '{}' and '{}'", *of_kind, each));
    of_kind = each;
  }
  return split;
}

struct NamedValue {
  std::string name, value;
};

NamedValue split_capture(const std::string& option, const std::string& text) {
  const std::size_t sign = text.find('=');
  if (sign == text.npos || sign == 0 || sign + 1 == text.size())
    refuse(fmt::format("{}: must be like slope=0.5 or slope=slopes.npy, was '{}'", option, text));
  return {text.substr(0, sign), text.substr(sign + 1)};
}
void check_capture(const std::string& option, const std::string& text) { split_capture(option, text); }

bool uses(const std::optional<std::string>& text, const std::string& name) {
  if (!text || name.empty()) return false;
  for (std::size_t at = text->find(name); at != text->npos; at = text->find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_name_part((*text)[at - 1])) && (end == text->size() || !is_name_part((*text)[end])))
      return true;
  }
  return false;
}

// "f32:2": of a packed tensor all that a kernel is made for.
std::optional<Tensor> tensor_of_type(const std::string& option, const std::string& value) {
  const std::size_t colon = value.find(':');
  if (colon == value.npos) return std::nullopt;
  constexpr std::int64_t kSizes[] = {2, 2, 2, 2};  // any will do
  const auto rank = parse_integer(option + ": dimensions", value.substr(colon + 1), 0, std::size(kSizes));
  const DType dtype = for_option(option.c_str(), [&] { return parse_dtype(value.substr(0, colon)); });
  return Tensor(nullptr, dtype, {kSizes, static_cast<std::size_t>(rank)});
}

bool is_file(const std::string& value) {
  constexpr std::string_view kSuffix = ".npy";
  return value.size() > kSuffix.size() && value.ends_with(kSuffix);
}

// Whole ones as int, others as float.
Capture number_capture(const std::string& name, const std::string& value) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int32_t>::max();
  const std::string option = fmt::format("--capture: {}", name);
  const bool is_whole = value.find_first_not_of("+-0123456789") == value.npos;
  if (is_whole) return {name, static_cast<std::int32_t>(parse_integer(option, value, kLow, kHigh))};
  try {
    return {name, static_cast<double>(parse_finite(option, value))};
  } catch (const Error&) {
    refuse(fmt::format("{} must be a number or a .npy file, was '{}'", option, value));
  }
}

// Another view of a tensor that the function captures.
template <class Function>
void set_tensor(std::optional<Function>& function, const std::string& name, const Tensor& tensor) {
  if (!function) return;
  for (const Capture& capture : function->captures())
    if (capture.name == name) return function->set({name, tensor});
}

// The same view in a copy of the memory.
Tensor moved_to(const DeviceTensor& memory, const CapturedTensor& tensor) {
  const auto offset = static_cast<const char*>(tensor.view.data) - static_cast<const char*>(tensor.memory.data());
  Tensor view = tensor.view;
  view.data = static_cast<char*>(memory.data()) + offset;
  return view;
}

CLI::Option* add_score_option(CLI::App* subcommand, TextOptions& options) {
  return add_option(subcommand, "--score", options.score, "TEXT",
                    "What becomes of a score: a text over score, query, key, batch and head");
}

CLI::Option* add_capture_option(CLI::App* subcommand, TextOptions& options) {
  const std::string types =
      options.types_suffice
          ? ", or of a contiguous tensor its type alone, f32:2 for two dimensions (f16, bf16, f32, i32, i64, boolean)"
          : "";
  return add_repeated(subcommand, "--capture", options.captures, "NAME=VALUE",
                      "What texts have by a name: a number, 3 an int and 3.0 a float, or a tensor in a .npy file, of "
                      "any dimensions up to 4" +
                          types + "; may be given again",
                      check_capture);
}

}  // namespace

bool TextOptions::is_causal() const {
  return std::any_of(masks.begin(), masks.end(), [](const std::string& mask) { return cli::is_causal(mask); });
}

std::optional<std::string> TextOptions::mask_words() const { return split_masks(masks).words; }
std::optional<std::string> TextOptions::mask() const { return split_masks(masks).text; }

void add_text_options(CLI::App* subcommand, TextOptions& options) {
  add_repeated(subcommand, "--mask", options.masks, "full|causal|TEXT",
               "Query i sees all keys, or causal: those up to i + seqlen_kv - seqlen_q; or those for which a text over "
               "query, key, batch and head is true. Once with a word and once with a text: what both show "
               "[default: full]",
               check_mask);
  add_score_option(subcommand, options);
  add_capture_option(subcommand, options);
}

TextListOptions add_text_list_options(CLI::App* subcommand, TextOptions& options) {
  CLI::Option* const masks = add_repeated(
      subcommand, "--mask", options.masks, "full|causal|TEXT",
      "Masks, as a list too: full,causal; or a text over query, key, batch and head. Once with words and once with a "
      "text: what both show [default: full,causal]",
      check_mask_list);
  return {masks, add_score_option(subcommand, options), add_capture_option(subcommand, options)};
}

Texts::Texts(const TextOptions& options) {
  const std::optional<std::string> mask = options.mask();
  std::vector<Capture> of_score, of_mask;
  for (const std::string& text : options.captures) {
    const auto [name, value] = split_capture("--capture", text);
    if (!uses(options.score, name) && !uses(mask, name))
      refuse(fmt::format("--capture: {} must be used in the text of --score or --mask, was in none", name));
    const Capture capture = capture_of(name, value, options.types_suffice);
    if (uses(options.score, name)) of_score.push_back(capture);
    if (uses(mask, name)) of_mask.push_back(capture);
  }
  if (options.score) for_option("--score", [&] { score_.emplace(*options.score, of_score); });
  if (mask) for_option("--mask", [&] { mask_.emplace(*mask, of_mask); });
}

Capture Texts::capture_of(const std::string& name, const std::string& value, bool types_suffice) {
  if (is_file(value)) return {name, add_tensor(name, value)};
  if (const auto tensor = types_suffice ? tensor_of_type("--capture: " + name, value) : std::nullopt)
    return {name, *tensor};
  return number_capture(name, value);
}

const Tensor& Texts::add_tensor(const std::string& name, const std::string& file) {
  HostTensor memory = read_npy(file);
  const Tensor view = memory.view();
  return tensors_.emplace_back(CapturedTensor{name, std::move(memory), view}).view;
}

Problem Texts::added_to(Problem problem) const {
  const Problem functions = problem_of(problem.dtype, problem.head_dim, problem.head_dim_v, on_host({}));
  problem.score = functions.score;
  problem.mask = functions.mask;
  return problem;
}

AttentionOptions Texts::on_host(AttentionOptions options) const {
  if (score_) options.score = score_;
  if (mask_) options.mask = mask_;
  return options;
}

AttentionOptions Texts::on_device(AttentionOptions options, int device, std::vector<DeviceTensor>& memory) const {
  options = on_host(std::move(options));
  for (const CapturedTensor& tensor : tensors_) {
    const Tensor view = moved_to(memory.emplace_back(tensor.memory.to_device(nullptr, device)), tensor);
    set_tensor(options.score, tensor.name, view);
    set_tensor(options.mask, tensor.name, view);
  }
  return options;
}

}  // namespace flashjit::cli
