// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/backward_choices.h"

#include "flashjit/error.h"
#include "runtime/backends/gpu_operation.h"
#include "runtime/call/backward_kernels.h"
#include "runtime/cuda/device.h"

namespace flashjit::runtime {

BackwardChoices::BackwardChoices(AutotunerOf<BackwardPass>& autotuner, Kernels& kernels, PlainKernels& plain_kernels,
                                 const Logger& log)
    : autotuner_(autotuner), kernels_(kernels), plain_kernels_(plain_kernels), log_(log) {}

std::optional<BackwardVariant> BackwardChoices::find(const BackwardCall& call, Stream stream) {
  const Driver& driver = Driver::load();
  const Device& on = device(resolve_device(driver, device_of(driver, call.forward.operands, stream)));
  const CallShape shape = tuning_shape(call.forward);
  const BackwardProblem problem = problem_of(call);
  const ShapeBucket bucket = shape_bucket(shape, on.info.sm_count);
  const Key key{LaunchKey(on.info.ordinal, problem.attention, bucket), problem.slopes, problem.bias,
                problem.deterministic};
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
  }
  require_architecture(on);
  const ContextScope scope(driver, on.info.ordinal, stream);
  const TuningDevice where = tuning_device(on.info);
  const bool captures = is_capturing(driver, stream);
  const auto settle = [&] { driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize"); };
  const ChoiceOf<BackwardVariant> choice =
      captures ? autotuner_.choose(problem, bucket, where) : autotuner_.choose_for_call(problem, shape, where, settle);
  std::optional<BackwardVariant> variant;
  // What is of the class may have no kernel for the problem.
  const bool is_legal = BackwardPass::why_illegal(problem, choice.variant, require_architecture(on)).empty();
  if (choice.tuned && is_legal && can_be_had(problem, choice.variant, on)) variant = choice.variant;
  if (captures && !variant) return variant;  // a later call may still be measured
  const std::lock_guard lock(mutex_);
  return known_.insert_or_assign(key, variant).first->second;
}

bool BackwardChoices::can_be_had(const BackwardProblem& problem, const BackwardVariant& variant, const Device& device) {
  try {
    kernels_.function_of(backward_kernel(problem, variant, require_architecture(device), plain_kernels_), device);
    return true;
  } catch (const Error& error) {
    log_(LogLevel::warning, "{}: the variant of a tuning record cannot be had, the default is used: {}",
         to_string(problem), error.what());
    return false;
  }
}

void BackwardChoices::forget() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

}  // namespace flashjit::runtime
