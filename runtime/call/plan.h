// SPDX-License-Identifier: Apache-2.0
// Calls with a plan, and calls that a plan is made for.
#pragma once

#include "flashjit/batch_plan.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

BatchPlan::Sizes plan_sizes(const ForwardCall& call, const Variant& variant);

// The memory that a plan for this variant takes on a device with so many SMs, i32.
Dims plan_dims(const ForwardCall& call, const Variant& variant, int sm_count);

// Both throw Error(invalid_argument).
// The call must be one that the plan is for.
void check_plan(const ForwardCall& call, const BatchPlan& plan);
// Checks a call that a plan is to be made for, and adds the memory to its operands.
void validate_plan_memory(ForwardCall& call, const Tensor& memory, const Variant& variant, int sm_count);
// Without memory.
void require_plannable(const AttentionOptions& opts);

}  // namespace flashjit::runtime
