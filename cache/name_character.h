// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashjit::cache {

// What names of entries, records and members of bundles consist of.
constexpr bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

}  // namespace flashjit::cache
