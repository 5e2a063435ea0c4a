// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/chrono.h>

#include <chrono>
#include <ctime>
#include <string>

namespace flashjit::cli {

// "2026-01-31T15:04:05Z"
inline std::string date_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

}  // namespace flashjit::cli
