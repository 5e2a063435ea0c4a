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

// A mask by its name, or an attempt at one; texts have more than letters and commas.
bool is_word(const std::string& mask) {
  return std::all_of(mask.begin(), mask.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == ','; });
}

void check_mask(const std::string& option, const std::string& mask) {
  if (is_word(mask)) require_word(option, mask, {"full", "causal"});
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

}  // namespace

bool TextOptions::is_causal() const {
  return std::any_of(masks.begin(), masks.end(), [](const std::string& mask) { return cli::is_causal(mask); });
}

std::optional<std::string> TextOptions::mask() const {
  std::optional<std::string> word, text;
  for (const std::string& each : masks) {
    std::optional<std::string>& of_kind = is_word(each) ? word : text;
    if (of_kind)
      refuse(fmt::format("--mask: must be at most one word and one text, was '{}' and '{}'", *of_kind, each));
    of_kind = each;
  }
  return text;
}

void add_text_options(CLI::App* subcommand, TextOptions& options) {
  add_repeated(subcommand, "--mask", options.masks, "full|causal|TEXT",
               "Query i sees all keys, or causal: those up to i + seqlen_kv - seqlen_q; or those for which a text over "
               "query, key, batch and head is true. Once with a word and once with a text: what both show "
               "[default: full]",
               check_mask);
  add_option(subcommand, "--score", options.score, "TEXT",
             "What becomes of a score: a text over score, query, key, batch and head");
  add_repeated(
      subcommand, "--capture", options.captures, "NAME=VALUE",
      "What texts have by a name: a number, or a tensor in a .npy file, of any dimensions up to 4; may be given "
      "again",
      check_capture);
}

Texts::Texts(const TextOptions& options) {
  const std::optional<std::string> mask = options.mask();
  std::vector<Capture> of_score, of_mask;
  for (const std::string& text : options.captures) {
    const auto [name, value] = split_capture("--capture", text);
    if (!uses(options.score, name) && !uses(mask, name))
      refuse(fmt::format("--capture: {} must be used in the text of --score or --mask, was in none", name));
    const Capture capture = is_file(value) ? Capture(name, tensors_.emplace_back(name, read_npy(value)).second.view())
                                           : number_capture(name, value);
    if (uses(options.score, name)) of_score.push_back(capture);
    if (uses(mask, name)) of_mask.push_back(capture);
  }
  if (options.score) for_option("--score", [&] { score_.emplace(*options.score, of_score); });
  if (mask) for_option("--mask", [&] { mask_.emplace(*mask, of_mask); });
}

AttentionOptions Texts::on_host(AttentionOptions options) const {
  options.score = score_;
  options.mask = mask_;
  return options;
}

AttentionOptions Texts::on_device(AttentionOptions options, int device, std::vector<DeviceTensor>& memory) const {
  options = on_host(std::move(options));
  for (const auto& [name, tensor] : tensors_) {
    const Tensor view = memory.emplace_back(tensor.to_device(nullptr, device)).view();
    set_tensor(options.score, name, view);
    set_tensor(options.mask, name, view);
  }
  return options;
}

}  // namespace flashjit::cli
