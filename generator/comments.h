// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace flashjit::generator {

// C++ code without its comments and without blanks at the ends of lines. Line breaks stay, so every line keeps its
// number. Kernels are compiled from such text: the cache hashes it, and a word in a comment changes no kernel.
// The code may hold string and character literals, but no raw strings.
std::string without_comments(std::string_view code);

}  // namespace flashjit::generator
