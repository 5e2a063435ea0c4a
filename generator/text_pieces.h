// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace flashjit::generator {

inline bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// A user's text in pieces: names, numbers, single other characters. Comments and blanks are left out.
class TextPieces {
 public:
  explicit TextPieces(std::string_view text) : text_(text) {}

  // Empty at the end.
  std::string_view next();
  // Where the last piece stands: "line 1, column 5".
  std::string place() const;
  bool ended_in_comment() const noexcept { return ended_in_comment_; }
  // What follows the last piece without a blank.
  char following() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

 private:
  void skip();

  std::string_view text_;
  std::size_t at_ = 0, begin_ = 0;
  bool ended_in_comment_ = false;
};

}  // namespace flashjit::generator
