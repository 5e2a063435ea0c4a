// SPDX-License-Identifier: Apache-2.0
// Which pass a subcommand is for, and what of gradients is compiled in.
#pragma once

#include <flashjit/backward.h>

#include <string>
#include <vector>

#include "cli/io/command.h"

namespace flashjit::cli {

struct PassOptions {
  std::string pass = "forward";
  bool deterministic = false, option_gradients = false, f32_gradients = false;

  // Throws Error(invalid_argument) which names the option when one that only gradients have is given without them.
  bool is_backward() const;
  // Throws Error(unsupported) for what has no backward kernels.
  BackwardProblem gradients_of(const Problem& problem) const;
  std::vector<BackwardProblem> gradients_of(const std::vector<Problem>& problems) const;
};
void add_pass_options(CLI::App* subcommand, PassOptions& options, const std::string& help);

}  // namespace flashjit::cli
