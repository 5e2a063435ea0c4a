// SPDX-License-Identifier: Apache-2.0
// What a compiler's log says of users' texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashjit::runtime {

struct TextError {
  enum class Place : unsigned char { line, whole, end };

  std::string file;           // "score" or "mask"
  int line, column;           // in the text, from 1; column 0: not told
  std::string message;        // the compiler's
  std::string excerpt;        // the line of the text and a mark below it; empty: not told
  Place place = Place::line;  // else in no line: wrong is the text as a whole, or what it lacks at its end

  bool operator==(const TextError&) const = default;
};

// In their order, each once: a text is compiled at several places of a kernel.
std::vector<TextError> errors_of_texts(std::string_view log);
// "score: line 2, column 3: identifier "foo" is undefined"
std::string to_string(const TextError& error);
// All of them for a log: like a compiler's, without where the texts were put to use.
std::string to_log(const std::vector<TextError>& errors);

}  // namespace flashjit::runtime
