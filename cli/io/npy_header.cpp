// SPDX-License-Identifier: Apache-2.0
#include "cli/io/npy_header.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <limits>
#include <set>
#include <vector>

namespace flashjit::cli {
namespace {

// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } and white space: the subset of Python that NumPy writes.
class Parser {
 public:
  Parser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    std::set<std::string> keys;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      if (!keys.insert(key).second) fail("has the key '" + key + "' twice");
      expect(':');
      value(key, header);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) fail("has something after the dictionary");
    for (const char* key : {"descr", "fortran_order", "shape"}) {
      if (keys.count(key) == 0) fail(fmt::format("lacks the key '{}'", key));
    }
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: the .npy header {}", path_, what));
  }

  void value(const std::string& key, NpyHeader& header) {
    if (key == "descr") {
      skip_space();
      if (peek() == '[') fail("describes records; the element type must be float16, float32 or float64");
      header.descr = string();
    } else if (key == "fortran_order") {
      header.fortran_order = boolean();
    } else if (key == "shape") {
      header.shape = shape();
    } else {
      fail("has the unknown key '" + key + "'");
    }
  }

  Dims shape() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      sizes.push_back(integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    if (sizes.size() > static_cast<std::size_t>(Dims::kMaxRank)) {
      fail(fmt::format("has {} dimensions; at most {} can be read", sizes.size(), +Dims::kMaxRank));
    }
    return Dims(sizes.data(), sizes.size());
  }

  std::int64_t integer() {
    skip_space();
    if (!is_digit(peek())) fail(fmt::format("must have a size at byte {}", position_));
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    std::int64_t number = 0;
    for (; is_digit(peek()); ++position_) {
      const int digit = peek() - '0';
      if (number > (kMax - digit) / 10) fail("has a size that does not fit 64 bits");
      number = number * 10 + digit;
    }
    return number;
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {std::string_view("True"), std::string_view("False")}) {
      if (text_.substr(position_, word.size()) != word) continue;
      position_ += word.size();
      return word == "True";
    }
    fail("must have True or False for 'fortran_order'");
  }

  std::string string() {
    skip_space();
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail(fmt::format("must have a quoted string at byte {}", position_));
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) fail("has a string without end");
    const std::string_view content = text_.substr(position_ + 1, end - position_ - 1);
    for (const char c : content) {
      if (c < ' ' || c > '~' || c == '\\') fail("has a string with unprintable characters");
    }
    position_ = end + 1;
    return std::string(content);
  }

  bool accept(char c) {
    skip_space();
    if (peek() != c) return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("must have '{}' at byte {}", c, position_));
  }
  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') ++position_;
  }
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  const std::string& path_;
  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(const std::string& path, std::string_view text) { return Parser(path, text).parse(); }

}  // namespace flashjit::cli
