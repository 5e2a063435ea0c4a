// SPDX-License-Identifier: Apache-2.0
#include "generator/text_pieces.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashjit::generator {
namespace {

bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

std::string_view TextPieces::next() {
  skip();
  begin_ = at_;
  if (at_ == text_.size()) return {};
  if (is_letter(text_[at_]))
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
  else if (is_digit(text_[at_]))
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.')) ++at_;
  else
    ++at_;
  return text_.substr(begin_, at_ - begin_);
}

std::string TextPieces::place() const {
  const std::string_view before = text_.substr(0, begin_);
  const std::size_t line_begin = before.rfind('\n') + 1;
  return fmt::format("line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1, begin_ - line_begin + 1);
}

void TextPieces::skip() {
  while (at_ < text_.size()) {
    if (is_blank(text_[at_])) {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (text_.substr(at_, 2) == "/*") {
      const std::size_t end = text_.find("*/", at_ + 2);
      ended_in_comment_ = end == text_.npos;
      at_ = ended_in_comment_ ? text_.size() : end + 2;
    } else {
      return;
    }
  }
}

}  // namespace flashjit::generator
