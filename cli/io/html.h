// SPDX-License-Identifier: Apache-2.0
// Text that goes into a page.
#pragma once

#include <string>
#include <string_view>

namespace flashjit::cli {

// For the text of an element and for an attribute in double quotes.
inline std::string html_text(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

}  // namespace flashjit::cli
