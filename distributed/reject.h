// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <utility>

#include "flashjit/error.h"

namespace flashjit::distributed {

// Throws Error(invalid_argument). The text names the argument, what it must be and what it was.
template <typename... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flashjit::distributed
