// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/text_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "generator/functions.h"

namespace flashjit::runtime {
namespace {

using generator::FunctionKind;

constexpr std::size_t kIndent = 2;  // of the excerpts in NVRTC's log

std::vector<std::string_view> lines_of(std::string_view log) {
  std::vector<std::string_view> lines;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    lines.push_back(log.substr(0, end));
    log.remove_prefix(std::min(end + 1, log.size()));
  }
  return lines;
}

// "score(2): error: identifier "foo" is undefined"; also errors with a number, "error #20:". file: as the compiler
// knows it.
std::optional<TextError> read_heading(std::string_view line, const std::string& file, const char* word) {
  if (!line.starts_with(file + "(")) return {};
  TextError error{word, 0, 0, {}, {}, TextError::Place::line};
  const char* const number = line.data() + file.size() + 1;
  const char* const end = std::from_chars(number, line.data() + line.size(), error.line).ptr;
  std::string_view rest = line.substr(static_cast<std::size_t>(end - line.data()));
  if (end == number || !rest.starts_with("): ")) return {};
  rest.remove_prefix(3);
  const std::size_t colon = rest.find(": ");
  if (colon == rest.npos || rest.substr(0, colon).find("error") == rest.npos) return {};
  error.message = rest.substr(colon + 2);
  return error;
}

// Of a text, or of what stands before and behind it, where a text as a whole is wrong, and what it lacks at its end.
std::optional<TextError> read_heading(std::string_view line) {
  for (const FunctionKind kind : {FunctionKind::score, FunctionKind::mask}) {
    const std::string word = generator::word_of(kind);
    if (auto error = read_heading(line, word, generator::word_of(kind))) return error;
    for (const auto& [file, place] : {std::pair{generator::kBeginOfText, TextError::Place::whole},
                                      std::pair{generator::kEndOfText, TextError::Place::end}})
      if (auto error = read_heading(line, file + word, generator::word_of(kind))) {
        error->place = place;
        error->line = 0;
        return error;
      }
  }
  return {};
}

bool is_mark(std::string_view line) {
  return line.find('^') != line.npos && line.find_first_not_of(" \t^~") == line.npos;
}

// Of the lines in which a message goes on, what completes it: the others list what else there is.
void complete(std::string_view line, TextError& error) {
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
  const std::string_view more = line.substr(first);
  if (error.message.ends_with(":") && (more.starts_with("argument types") || more.starts_with("operand types")))
    error.message.append(" ").append(more);
}

// A message may go on for some lines; the text's line and the mark below it end it. What stands before and behind a
// text is no excerpt of it.
void read_excerpt(const std::vector<std::string_view>& lines, std::size_t heading, TextError& error) {
  for (std::size_t i = heading + 1; i < lines.size() && !lines[i].empty(); ++i) {
    complete(lines[i], error);
    if (!is_mark(lines[i])) continue;
    if (error.place != TextError::Place::line) return;
    error.column = static_cast<int>(lines[i].find('^') - std::min(kIndent, lines[i].find('^'))) + 1;
    error.excerpt = fmt::format("{}\n{}", lines[i - 1], lines[i]);
    return;
  }
}

}  // namespace

std::vector<TextError> errors_of_texts(std::string_view log) {
  const std::vector<std::string_view> lines = lines_of(log);
  std::vector<TextError> errors;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::optional<TextError> error = read_heading(lines[i]);
    if (!error) continue;
    read_excerpt(lines, i, *error);
    if (std::find(errors.begin(), errors.end(), *error) == errors.end()) errors.push_back(std::move(*error));
  }
  return errors;
}

std::string to_string(const TextError& error) {
  if (error.place == TextError::Place::whole) return fmt::format("{}: {}", error.file, error.message);
  if (error.place == TextError::Place::end) return fmt::format("{}: at its end: {}", error.file, error.message);
  const std::string column = error.column == 0 ? "" : fmt::format(", column {}", error.column);
  return fmt::format("{}: line {}{}: {}", error.file, error.line, column, error.message);
}

std::string to_log(const std::vector<TextError>& errors) {
  std::string log;
  for (const TextError& error : errors)
    log += to_string(error) + "\n" + error.excerpt + (error.excerpt.empty() ? "" : "\n");
  return log;
}

}  // namespace flashjit::runtime
