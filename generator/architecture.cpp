// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "flashjit/error.h"
#include "flashjit/problem.h"

namespace flashjit {

const std::vector<Architecture>& architectures() {
  constexpr int kKiB = 1024;
  static const std::vector<Architecture> all = {
      {"sm_80", 8, 0, 163 * kKiB, 164 * kKiB},    {"sm_86", 8, 6, 99 * kKiB, 100 * kKiB},
      {"sm_89", 8, 9, 99 * kKiB, 100 * kKiB},     {"sm_90a", 9, 0, 227 * kKiB, 228 * kKiB},
      {"sm_100a", 10, 0, 227 * kKiB, 228 * kKiB}, {"sm_103a", 10, 3, 227 * kKiB, 228 * kKiB},
      {"sm_120a", 12, 0, 99 * kKiB, 100 * kKiB},  {"sm_121a", 12, 1, 99 * kKiB, 100 * kKiB},
  };
  return all;
}

const Architecture& find_architecture(std::string_view name) {
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == name) return architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("architecture: must be one of {}, was '{}'", known, name));
}

}  // namespace flashjit
