// SPDX-License-Identifier: Apache-2.0
// Words and numbers as users type them. All that is refused is refused by name, with what it must be and what it was.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit::cli {

// "; did you mean 'compile'?" with that of the words which text is most like; empty when it is like none.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& words);

// These throw Error(invalid_argument), which begins with name: that of an option, or of a line of a file and its field.
void require_word(std::string_view name, std::string_view text, const std::vector<std::string>& words);
// At the commas. No item is empty.
std::vector<std::string> split_list(std::string_view name, std::string_view text);
// The whole text, in digits.
std::int64_t parse_integer(std::string_view name, std::string_view text, std::int64_t low, std::int64_t high);
std::uint64_t parse_seed(std::string_view name, std::string_view text);
float parse_finite(std::string_view name, std::string_view text);

}  // namespace flashjit::cli
