// SPDX-License-Identifier: Apache-2.0
#include "generator/comments.h"

#include <algorithm>

namespace flashjit::generator {
namespace {

// Where the literal that begins at begin ends, behind its closing quote.
std::size_t end_of_literal(std::string_view code, std::size_t begin) {
  std::size_t at = begin + 1;
  while (at < code.size() && code[at] != code[begin]) at += code[at] == '\\' ? 2 : 1;
  return std::min(at + 1, code.size());
}

// Where the comment that begins at begin ends: at the line break, which is no part of it, or behind its last character.
std::size_t end_of_comment(std::string_view code, std::size_t begin) {
  if (code[begin + 1] == '/') return std::min(code.find('\n', begin), code.size());
  const std::size_t last = code.find("*/", begin + 2);
  return last == std::string_view::npos ? code.size() : last + 2;
}

void trim_line(std::string& text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.pop_back();
}

}  // namespace

std::string without_comments(std::string_view code) {
  std::string text;
  text.reserve(code.size());
  for (std::size_t at = 0; at < code.size();) {
    const char c = code[at];
    const bool opens = c == '/' && at + 1 < code.size() && (code[at + 1] == '/' || code[at + 1] == '*');
    if (opens) {
      const std::size_t end = end_of_comment(code, at);
      const auto lines = static_cast<std::size_t>(std::count(code.begin() + at, code.begin() + end, '\n'));
      if (lines > 0) trim_line(text);
      text.append(lines > 0 ? lines : 1, lines > 0 ? '\n' : ' ');  // a comment separates words
      at = end;
    } else if (c == '"' || c == '\'') {
      const std::size_t end = end_of_literal(code, at);
      text += code.substr(at, end - at);
      at = end;
    } else {
      if (c == '\n') trim_line(text);
      text += c;
      ++at;
    }
  }
  trim_line(text);
  return text;
}

}  // namespace flashjit::generator
