// SPDX-License-Identifier: Apache-2.0
// What of a user's text can be seen without a compiler.
#pragma once

#include <string>
#include <string_view>

namespace flashjit::generator {

// Why a text is none that a function can be made of; empty: nothing against it. A text must not leave the function that
// it is put into, so brackets must match, and what a preprocessor reads, literals with quotes, assembler and the names
// that C++ reserves are not taken. All else is the compiler's to judge.
std::string why_no_text(std::string_view text);
// Likewise for the name of a capture: an identifier that means nothing else in a text.
std::string why_no_capture_name(std::string_view name);
// Whether the text has this identifier, outside of comments.
bool uses_name(std::string_view text, std::string_view name);

}  // namespace flashjit::generator
