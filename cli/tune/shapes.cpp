// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/shapes.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "cli/io/forward_grid.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kLargestSize = 0x7fffffff;
constexpr std::array kFields = {"dtype", "head_dim", "mask", "batch", "seqlen_q", "seqlen_kv", "heads_q", "heads_kv"};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, where + ": " + what);
}

std::int64_t parse_size(const std::string& where, std::string_view text) {
  return parse_integer(where, text, 1, kLargestSize);
}

void require_grouping(const std::string& where, const CallShape& shape) {
  if (shape.num_heads_q % shape.num_heads_kv == 0) return;
  refuse(where, fmt::format("must divide the {} heads of q, was {}", shape.num_heads_q, shape.num_heads_kv));
}

std::vector<std::string> words_of(std::string line) {
  line.erase(std::min(line.find('#'), line.size()));
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<TuneCase> parse_line(const std::string& where, const std::vector<std::string>& words) {
  if (words.size() != kFields.size()) {
    refuse(where,
           fmt::format("must have the {} fields {}, has {}", kFields.size(), fmt::join(kFields, " "), words.size()));
  }
  const auto place = [&](std::size_t field) { return fmt::format("{}: {}", where, kFields[field]); };
  const auto size = [&](std::size_t field) { return parse_size(place(field), words[field]); };
  const std::vector<DType> dtypes = parse_dtypes(place(0), words[0]);
  const std::vector<HeadDims> head_dims = parse_head_dims(place(1), words[1]);
  const std::vector<bool> masks = parse_masks(place(2), words[2]);
  const CallShape shape{size(3), size(4), size(5), size(6), size(7)};
  require_grouping(place(7), shape);
  std::vector<TuneCase> cases;
  for (const Problem& problem : combine(dtypes, head_dims, masks)) cases.push_back({problem, shape});
  return cases;
}

std::string read_text(const std::string& path) {
  if (std::error_code ignored;
      std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    refuse("--shapes", fmt::format("{} must be a file with shapes, is not a regular file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::io, fmt::format("--shapes: {} cannot be read", path));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<TuneCase> cases_of_grid(const TuneSelection& selection) {
  if (const std::optional<std::string> text = selection.problems.texts.mask())
    refuse("--mask", fmt::format("must be full, causal or both of them with --grid, was '{}'", *text));
  const std::vector<bool> masks = parse_masks("--mask", selection.problems.mask_words());
  std::vector<TuneCase> cases;
  for (const DType dtype : parse_dtypes("--dtype", selection.problems.dtypes)) {
    for (const GridCell& cell : forward_grid(dtype)) {
      if (std::find(masks.begin(), masks.end(), cell.problem.causal) == masks.end()) continue;
      const Dims shape = cell.shape();
      cases.push_back({cell.problem, {shape[0], cell.seqlen, cell.seqlen, shape[2], shape[2]}});
    }
  }
  return cases;
}

// "2048" or "128x2048": queries, then keys.
CallShape parse_lengths(std::string_view text, CallShape shape) {
  const std::size_t cross = std::min(text.find('x'), text.size());
  shape.seqlen_q = parse_size("--seqlen", text.substr(0, cross));
  shape.seqlen_kv = cross == text.size() ? shape.seqlen_q : parse_size("--seqlen", text.substr(cross + 1));
  return shape;
}

std::vector<TuneCase> cases_of_lists(const TuneSelection& selection) {
  CallShape shape{selection.batch, 0, 0, selection.heads, selection.heads_kv.value_or(selection.heads)};
  require_grouping("--heads-kv", shape);
  const std::vector<std::string> lengths = split_list("--seqlen", selection.seqlens);
  std::vector<TuneCase> cases;
  for (const Problem& problem : selection.problems.problems(Texts(selection.problems.texts))) {
    const AttentionOptions options = selection.problems.features.options(problem.causal);
    for (const std::string& item : lengths) {
      CallShape sizes = parse_lengths(item, shape);
      sizes.seqlen_kv = keys_of_query(options, sizes.seqlen_kv);
      cases.push_back({problem, sizes});
    }
  }
  return cases;
}

}  // namespace

std::vector<TuneCase> TuneSelection::cases() const {
  const int ways = !grid.empty() + !shapes.empty() + !seqlens.empty();
  if (ways != 1) refuse("autotune", fmt::format("needs one of --grid, --shapes and --seqlen, was given {}", ways));
  if (!grid.empty()) return cases_of_grid(*this);
  return shapes.empty() ? cases_of_lists(*this) : parse_shapes(shapes, read_text(shapes));
}

std::vector<TuneCase> parse_shapes(const std::string& file, std::string_view text) {
  std::vector<TuneCase> cases;
  std::istringstream stream{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    const std::string where = fmt::format("--shapes: {}:{}", file, ++number);
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    const std::vector<TuneCase> more = parse_line(where, words);
    cases.insert(cases.end(), more.begin(), more.end());
  }
  if (cases.empty()) refuse("--shapes", fmt::format("{} must have at least one line with a shape, has none", file));
  return cases;
}

std::string shape_text(const CallShape& shape) {
  const std::string heads = shape.num_heads_q == shape.num_heads_kv
                                ? fmt::format("{}", shape.num_heads_q)
                                : fmt::format("{}/{}", shape.num_heads_q, shape.num_heads_kv);
  return fmt::format("{} x {} q x {} kv, {} heads", shape.batch, shape.seqlen_q, shape.seqlen_kv, heads);
}

}  // namespace flashjit::cli
