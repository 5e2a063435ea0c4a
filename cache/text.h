// SPDX-License-Identifier: Apache-2.0
// Text that others may have written, and that people see on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace flashjit::cache {

// The UTF-8 text with a space in place of each control character (U+0000 to U+001F, U+007F to U+009F) but these:
// terminals obey some of them.
std::string without_control_characters(std::string text, std::string_view kept = {});

}  // namespace flashjit::cache
