// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/compared_case.h"

#include <fmt/format.h>

namespace flashjit::cli {

std::string problem_with(const char* name, const reference::Comparison& comparison) {
  if (comparison.passed) return "";
  return fmt::format("{}: error {:.3g} is above {:.3g}", name, comparison.max_error, comparison.bound);
}

}  // namespace flashjit::cli
