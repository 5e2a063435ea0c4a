// SPDX-License-Identifier: Apache-2.0
// Plans: what calls for ragged batches find out first, kept.
#include "flashjit/batch_plan.h"
#include "runtime/api/engine_impl.h"
#include "runtime/backends/remembered_calls.h"
#include "runtime/call/plan.h"
#include "runtime/call/ragged.h"

namespace flashjit {
namespace {

// The variant of calls with these tensors and options, which finds its kernels made from now on.
Variant prepared_variant(runtime::Backend& backend, runtime::ForwardCall& call, const AttentionOptions& opts) {
  const Variant variant = backend.prepare(call, opts).variant;
  const Variant* const own = call.variant;
  call.variant = &variant;  // by which calls with the plan look for it
  backend.prepare(call, opts);
  call.variant = own;
  return variant;
}

}  // namespace

Dims Engine::plan_dims(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  const runtime::CallWithBatch with(q, k, v, {}, opts);
  runtime::ForwardCall call = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
  runtime::require_plannable(with.opts);
  const Variant variant = prepared_variant(impl_->backend, call, with.opts);
  return runtime::plan_dims(call, variant, impl_->backend.sm_count(call.operands, opts.stream));
}

BatchPlan Engine::plan(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  const runtime::CallWithBatch with(q, k, v, {}, opts);
  const runtime::ForwardCall call = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
  DeviceTensor memory = DeviceTensor::allocate(DType::i32, plan_dims(q, k, v, opts), opts.stream,
                                               impl_->backend.output_device(call.operands, opts.stream));
  BatchPlan plan = this->plan(q, k, v, memory, opts);
  plan.owned_ = std::move(memory);
  return plan;
}

BatchPlan Engine::plan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& memory,
                       const AttentionOptions& opts) {
  const runtime::CallWithBatch with(q, k, v, {}, opts);
  runtime::ForwardCall call = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
  runtime::require_plannable(with.opts);
  BatchPlan plan;
  plan.problem_ = call.problem;
  plan.variant_ = prepared_variant(impl_->backend, call, with.opts);
  plan.sizes_ = runtime::plan_sizes(call, plan.variant_);
  plan.memory_ = memory;
  plan.remembered_ = std::make_shared<runtime::RememberedCalls>();
  update(plan, q, k, v, opts);
  const int sm_count = impl_->backend.sm_count(call.operands, opts.stream);
  plan.memory_ =
      Tensor(memory.data, memory.dtype, runtime::plan_dims(call, plan.variant_, sm_count));  // what is needed
  return plan;
}

void Engine::update(BatchPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  const runtime::CallWithBatch with(q, k, v, {}, opts);
  runtime::ForwardCall call = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
  runtime::require_plannable(with.opts);
  if (!call.variant) call.variant = &plan.variant_;
  runtime::check_plan(call, plan);
  runtime::validate_plan_memory(call, plan.memory_, plan.variant_, impl_->backend.sm_count(call.operands, opts.stream));
  impl_->check(call, with.opts);
  impl_->backend.plan(call, plan.memory_, with.opts);
}

}  // namespace flashjit
