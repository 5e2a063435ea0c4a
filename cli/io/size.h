// SPDX-License-Identifier: Apache-2.0
// Numbers of bytes as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace flashjit::cli {

std::string size_text(std::uint64_t bytes);  // "17 B", "1.5 MiB"

}  // namespace flashjit::cli
