// SPDX-License-Identifier: Apache-2.0
// Numbers of bytes as people write and read them.
#pragma once

#include <cstdint>
#include <string>

namespace flashjit::cli {

// "1000000", "512M": bytes, or a number with K, M, G or T. Throws Error(invalid_argument) which names the option.
std::uint64_t parse_size(const std::string& option, const std::string& text);

std::string size_text(std::uint64_t bytes);  // "17 B", "1.5 MiB"

}  // namespace flashjit::cli
