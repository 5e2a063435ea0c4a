// SPDX-License-Identifier: Apache-2.0
// PTX text, word by word (PTX ISA, "Lexical elements").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashjit::emulator {

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { skip_space(); }

  bool at_end() const { return at_ >= text_.size(); }
  int line() const { return line_; }
  char peek() const { return at_end() ? '\0' : text_[at_]; }

  // True, and the character is passed over, if it is the next one.
  bool take(char c);
  // Letters, digits, _ $ % and, for names of directives and opcodes, dots and ::. Empty when none is next.
  std::string_view word();
  std::string_view dotted_word();
  // An integer, 0f… or 0d…, with a sign: its bits. Nothing is taken when none is next.
  struct Number {
    std::uint64_t bits;
    bool is_float;
  };
  std::optional<Number> number();
  std::string quoted();
  // What stands before the character, which is passed over.
  std::string_view until(char c);
  void skip_line();

  // Where the lexer is, to come back to.
  struct Mark {
    std::size_t at;
    int line;
  };
  Mark mark() const { return {at_, line_}; }
  void rewind(Mark mark) { at_ = mark.at, line_ = mark.line; }

 private:
  template <class Accepts>
  std::string_view run(Accepts accepts);
  void skip_space();

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace flashjit::emulator
