// SPDX-License-Identifier: Apache-2.0
// Log lines through the caller's callback. One that cannot be written, on a full disk say, is lost and no error of what
// it tells about.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

#include "flashjit/engine.h"

namespace flashjit::runtime {

class Logger {
 public:
  using Callback = std::function<void(LogLevel, const std::string&)>;

  explicit Logger(Callback callback) : callback_(std::move(callback)) {}

  template <typename... Args>
  void operator()(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const noexcept try {
    if (callback_) callback_(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {
  }

 private:
  Callback callback_;
};

}  // namespace flashjit::runtime
