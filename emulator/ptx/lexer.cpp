// SPDX-License-Identifier: Apache-2.0
#include "emulator/ptx/lexer.h"

#include <charconv>

namespace flashjit::emulator {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' || c == '%';
}

}  // namespace

void Lexer::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') ++line_;
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      ++at_;
    } else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/') {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '*') {
      const std::size_t end = text_.find("*/", at_ + 2);
      const std::size_t stop = end == std::string_view::npos ? text_.size() : end + 2;
      for (; at_ < stop; ++at_) line_ += text_[at_] == '\n';
    } else {
      return;
    }
  }
}

bool Lexer::take(char c) {
  if (peek() != c) return false;
  ++at_;
  skip_space();
  return true;
}

template <class Accepts>
std::string_view Lexer::run(Accepts accepts) {
  const std::size_t begin = at_;
  while (at_ < text_.size() && accepts(text_[at_])) ++at_;
  const std::string_view found = text_.substr(begin, at_ - begin);
  skip_space();
  return found;
}

std::string_view Lexer::word() { return run(is_word); }

std::string_view Lexer::dotted_word() {
  const std::size_t begin = at_;
  const auto accepts = [&](std::size_t i) {
    if (is_word(text_[i]) || text_[i] == '.') return true;
    // "::" belongs to a modifier, a single colon ends a label.
    return text_[i] == ':' && ((i + 1 < text_.size() && text_[i + 1] == ':') || (i > begin && text_[i - 1] == ':'));
  };
  while (at_ < text_.size() && accepts(at_)) ++at_;
  const std::string_view found = text_.substr(begin, at_ - begin);
  skip_space();
  return found;
}

std::optional<Lexer::Number> Lexer::number() {
  const Mark start = mark();
  const bool negative = take('-');
  if (!is_digit(peek())) {
    rewind(start);
    return {};
  }
  std::string_view digits = word();
  Number number{0, false};
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0') {
    const char kind = digits[1];
    number.is_float = kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D';
    if (number.is_float || kind == 'x' || kind == 'X') {
      base = 16;
      digits.remove_prefix(2);
    }
  }
  if (base == 10 && digits.size() > 1 && digits[0] == '0') base = 8;
  if (digits.back() == 'U') digits.remove_suffix(1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number.bits, base);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    rewind(start);
    return {};
  }
  if (negative) number.bits = 0 - number.bits;
  return number;
}

std::string Lexer::quoted() {
  if (peek() != '"') return {};
  ++at_;
  return std::string(until('"'));
}

std::string_view Lexer::until(char c) {
  const std::size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != c) line_ += text_[at_++] == '\n';
  const std::string_view found = text_.substr(begin, at_ - begin);
  if (at_ < text_.size()) ++at_;
  skip_space();
  return found;
}

void Lexer::skip_line() {
  while (at_ < text_.size() && text_[at_] != '\n') ++at_;
  skip_space();
}

}  // namespace flashjit::emulator
