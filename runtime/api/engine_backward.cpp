// SPDX-License-Identifier: Apache-2.0
// Gradients, on the engine's device.
#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/backward.h"

namespace flashjit {

void Engine::attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& out, const Tensor& lse, const GradientTensors& into,
                                const AttentionOptions& opts, const BackwardOptions& backward) {
  const runtime::GivenGradients given{dout, q, k, v, out, lse, into, opts, backward};
  runtime::BackwardCall call = runtime::validate_backward(given);
  if (call.nothing_to_do()) return;
  const int device = impl_->backend.output_device(call.forward.operands, opts.stream);
  runtime::BackwardScratch scratch = runtime::backward_scratch(call);
  DeviceTensor rows = DeviceTensor::allocate(DType::f32, scratch.rows.shape, opts.stream, device), dq;
  scratch.rows = rows;
  if (into.dq) scratch.dq = dq = DeviceTensor::allocate(DType::f32, scratch.dq.shape, opts.stream, device);
  runtime::add_scratch(call, scratch);
  const auto run = [&](auto make) {
    impl_->backend.run(call.forward.operands, opts.stream,
                       [&](const Architecture& architecture) { return make(call, architecture, impl_->templates); });
  };
  run(runtime::make_backward_prepare_launch);
  run(runtime::make_backward_launch);
  if (into.dq) run(runtime::make_backward_finish_launch);
}

Gradients Engine::attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& out, const Tensor& lse, const AttentionOptions& opts,
                                     const BackwardOptions& backward) {
  const GradientTensors none;
  const runtime::GivenGradients given{dout, q, k, v, out, lse, none, opts, backward};
  const runtime::BackwardCall checked = runtime::validate_backward(given);
  const int device = impl_->backend.output_device(checked.forward.operands, opts.stream);
  Gradients made{DeviceTensor::allocate(q.dtype, q.shape, opts.stream, device),
                 DeviceTensor::allocate(k.dtype, k.shape, opts.stream, device),
                 DeviceTensor::allocate(v.dtype, v.shape, opts.stream, device)};
  attention_backward(dout, q, k, v, out, lse, {made.dq.view(), made.dk.view(), made.dv.view()}, opts, backward);
  return made;
}

}  // namespace flashjit
