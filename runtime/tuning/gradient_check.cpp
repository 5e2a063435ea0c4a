// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/gradient_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/tuning/stand_in_calls.h"

namespace flashjit::runtime {
namespace {

constexpr const char* kNames[] = {"dq", "dk", "dv"};
constexpr std::vector<double> reference::Gradients::*kGradients[] = {
    &reference::Gradients::dq, &reference::Gradients::dk, &reference::Gradients::dv};
constexpr double kMostUnlike =
    1.0 / 32;  // of the root of the mean square: kernels that are right differ by a hundredth

// exact, and as far from it as low precision is, so many times.
std::string compare(std::size_t which, const HostTensor& made, const std::vector<double>& exact,
                    const ExpectedGradients& expected, double times) {
  const std::vector<double>&reference = expected.exact.*kGradients[which], &low = expected.low.*kGradients[which];
  std::vector<double> allowed = exact;
  for (std::size_t i = 0; i < allowed.size(); ++i) allowed[i] += times * (low[i] - reference[i]);
  const reference::Comparison comparison = reference::compare(made, exact, allowed);
  if (comparison.passed) return {};
  return fmt::format("{} is off by {:.3g} where {:.3g} is allowed", kNames[which], comparison.max_error,
                     comparison.bound);
}

double unlikeness(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), square += b[i] * b[i];
  return difference == 0 ? 0 : std::sqrt(difference / square);
}

}  // namespace

ExpectedGradients expected_gradients(const CheckCase& call, const HostTensor& dout) {
  const AttentionOptions options = call.options_on_host();
  const reference::GivenBackward given{dout.view(), call.q.view(), call.k.view(), call.v.view(), options, {}};
  const auto hook = [&](bool in_f32) { return stand_in_hook(call.problem, {call.shape}, in_f32); };
  return {reference::attention_backward(given, hook(false)),
          reference::attention_backward_in_low_precision(given, hook(true))};
}

std::string why_not_as_expected(const std::vector<HostTensor>& made, const ExpectedGradients& expected) {
  std::string why;
  for (std::size_t i = 0; i < made.size() && why.empty(); ++i)
    why = compare(i, made[i], expected.exact.*kGradients[i], expected, 2);
  return why;
}

std::string why_unlike(const std::vector<HostTensor>& made, const std::vector<HostTensor>& other,
                       const ExpectedGradients& expected) {
  std::string why;
  for (std::size_t i = 0; i < made.size() && why.empty(); ++i)
    why = compare(i, made[i], other[i].to_doubles(), expected, 1);
  return why;
}

std::string why_unlike(const std::vector<HostTensor>& made, const std::vector<HostTensor>& other) {
  for (std::size_t i = 0; i < made.size(); ++i) {
    const double by = unlikeness(made[i].to_doubles(), other[i].to_doubles());
    if (!(by <= kMostUnlike))
      return fmt::format("{} differs from the default's by {:.3g} of its size where {:.3g} is allowed", kNames[i], by,
                         kMostUnlike);
  }
  return {};
}

}  // namespace flashjit::runtime
