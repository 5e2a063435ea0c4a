// SPDX-License-Identifier: Apache-2.0
#include "cli/io/pass_options.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>

namespace flashjit::cli {

bool PassOptions::is_backward() const {
  if (pass == "backward") return true;
  for (const auto& [name, given] : {std::pair{"--deterministic", deterministic},
                                    {"--option-gradients", option_gradients},
                                    {"--f32-gradients", f32_gradients}})
    if (given)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: must not be given without --pass backward, whose gradients it is about", name));
  return false;
}

BackwardProblem PassOptions::gradients_of(const Problem& problem) const {
  const BackwardProblem gradients{problem,
                                  f32_gradients,
                                  option_gradients && problem.alibi,
                                  option_gradients && problem.bias,
                                  option_gradients && problem.sinks,
                                  deterministic};
  validate(gradients);
  return gradients;
}

std::vector<BackwardProblem> PassOptions::gradients_of(const std::vector<Problem>& problems) const {
  std::vector<BackwardProblem> gradients;
  for (const Problem& problem : problems) gradients.push_back(gradients_of(problem));
  return gradients;
}

void add_pass_options(CLI::App* subcommand, PassOptions& options, const std::string& help) {
  add_choice(subcommand, "--pass", options.pass, {"forward", "backward"}, help);
  add_flag(subcommand, "--deterministic", options.deterministic,
           "Calls for gradients have deterministic; beside --pass backward, as the two below");
  add_flag(subcommand, "--option-gradients", options.option_gradients,
           "Calls want the gradients of the bias, the ALiBi slopes and the sinks that they have, too");
  add_flag(subcommand, "--f32-gradients", options.f32_gradients, "dk and dv are of f32");
}

}  // namespace flashjit::cli
