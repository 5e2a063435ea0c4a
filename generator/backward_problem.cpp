// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "flashjit/backward.h"
#include "flashjit/error.h"
#include "flashjit/tuning.h"
#include "generator/backward.h"
#include "generator/plan.h"

namespace flashjit {
namespace {

// In the order in which they are spelled.
struct GradientWord {
  bool BackwardProblem::*asked;
  std::string_view word;
};
constexpr GradientWord kGradientWords[] = {{&BackwardProblem::f32, "-f32"},
                                           {&BackwardProblem::slopes, "-dslopes"},
                                           {&BackwardProblem::bias, "-dbias"},
                                           {&BackwardProblem::sinks, "-dsinks"},
                                           {&BackwardProblem::deterministic, "-deterministic"}};
constexpr std::string_view kForwardPass = "fwd", kBackwardPass = "bwd";

void require_option(const char* name, bool asked, bool has, const char* option, const BackwardProblem& problem) {
  if (!asked || has) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: must be false without {}, was {}", name, option, to_string(problem)));
}

}  // namespace

std::string to_string(const BackwardProblem& problem) {
  std::string text = to_string(problem.attention).replace(0, kForwardPass.size(), kBackwardPass);
  for (const auto& [asked, word] : kGradientWords)
    if (problem.*asked) text += word;
  return text;
}

BackwardProblem parse_backward_problem(std::string_view text) {
  BackwardProblem problem;
  std::string_view rest = text;
  for (auto row = std::rbegin(kGradientWords); row != std::rend(kGradientWords); ++row) {
    problem.*row->asked = rest.ends_with(row->word);
    if (problem.*row->asked) rest.remove_suffix(row->word.size());
  }
  if (!rest.starts_with(kBackwardPass))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("problem: must be like bwd-bf16-d128-causal or bwd-f16-d64-deterministic, was {}", text));
  rest.remove_prefix(kBackwardPass.size());
  problem.attention = parse_problem(std::string(kForwardPass) + std::string(rest));
  validate(problem);
  return problem;
}

BackwardProblem tuning_class(const BackwardProblem& problem) {
  BackwardProblem of_class = problem;
  of_class.attention = tuning_class(generator::backward_problem(problem.attention));
  of_class.f32 = of_class.sinks = false;
  return of_class;
}

void validate(const BackwardProblem& problem) {
  const Problem& attention = problem.attention;
  validate(attention);
  struct Row {
    const char* name;
    bool asked;
  };
  for (const auto& [name, asked] : {Row{"paged", attention.paged},
                                    {"e4m3", attention.e4m3},
                                    {"k_rotary", attention.k_rotary},
                                    {"latent", attention.latent}})
    if (asked)
      throw Error(
          ErrorCode::unsupported,
          fmt::format("{}: must not be asked for, it has no backward kernels yet, was {}", name, to_string(problem)));
  require_option("dslopes", problem.slopes, attention.alibi, "alibi, whose gradient it is", problem);
  require_option("dbias", problem.bias, attention.bias != nullptr, "a bias, whose gradient it is", problem);
  require_option("dsinks", problem.sinks, attention.sinks, "sinks, whose gradient it is", problem);
}

}  // namespace flashjit
