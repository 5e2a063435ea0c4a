// SPDX-License-Identifier: Apache-2.0
// Gradients, on the engine's device.
#include <optional>
#include <utility>
#include <vector>

#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/backends/backward_bench.h"
#include "runtime/call/backward.h"
#include "runtime/call/ragged_backward.h"

namespace flashjit {
namespace {

using BackwardMemory = std::vector<DeviceTensor>;

// Chooses its kernel, and what the launches share for as long as they are enqueued.
BackwardMemory make_ready(runtime::BackwardCall& call, const runtime::Backend& backend, std::int64_t resident_blocks,
                          const std::optional<BackwardVariant>& recorded = {}) {
  const Stream stream = call.given.opts.stream;
  const int device = backend.output_device(call.forward.operands, stream);
  runtime::choose_variant(call, backend.architecture(call.forward.operands, stream), resident_blocks, recorded);
  return runtime::allocate_scratch(call, stream, device);
}

}  // namespace

void Engine::Impl::for_each_launch(runtime::BackwardCall& call, const UseLaunch& use) {
  if (call.nothing_to_do()) return;
  const Stream stream = call.given.opts.stream;
  const std::optional<BackwardVariant> recorded =
      call.given.backward.variant ? std::nullopt : recorded_variant(call, stream);
  const BackwardMemory memory =
      make_ready(call, backend, backend.resident_blocks(call.forward.operands, stream), recorded);
  for (const runtime::MakeBackwardLaunch make : runtime::backward_launches(call))
    use([&](const Architecture& architecture) { return make(call, architecture, plain_kernels); });
}

void Engine::attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& out, const Tensor& lse, const GradientTensors& into,
                                const AttentionOptions& opts, const BackwardOptions& backward) {
  runtime::with_batches({dout, q, k, v, out, lse, into, opts, backward}, [&](const runtime::GivenGradients& given) {
    runtime::BackwardCall call = runtime::validate_backward(given);
    impl_->check(call.forward, given.opts);
    impl_->for_each_launch(call, [&](const runtime::Backend::MakePlainLaunch& make) {
      impl_->backend.run(call.forward.operands, opts.stream, make);
    });
  });
}

void Engine::prepare_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                              const Tensor& lse, const GradientTensors& into, const AttentionOptions& opts,
                              const BackwardOptions& backward) {
  runtime::with_batches({dout, q, k, v, out, lse, into, opts, backward}, [&](const runtime::GivenGradients& given) {
    runtime::BackwardCall call = runtime::validate_backward(given);
    impl_->for_each_launch(call, [&](const runtime::Backend::MakePlainLaunch& make) {
      impl_->backend.prepare(call.forward.operands, opts.stream, make);
    });
  });
}

emulator::Report Engine::emulate_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& out, const Tensor& lse, const GradientTensors& into,
                                          const AttentionOptions& opts, const BackwardOptions& backward,
                                          const EmulationOptions& options) {
  if (!impl_->emulated)
    throw Error(ErrorCode::unsupported,
                "emulate_backward: needs an engine whose options name an architecture to emulate");
  const auto emulate = [&](const runtime::GivenGradients& given) {
    emulator::Report report;  // of the gradients' own launch, where none has findings
    runtime::BackwardCall call = runtime::validate_backward(given);
    if (call.nothing_to_do()) return report;
    const BackwardMemory memory = make_ready(call, impl_->backend, options.resident_blocks);
    for (const runtime::MakeBackwardLaunch make : runtime::backward_launches(call)) {
      const auto made = [&](const Architecture& of) { return make(call, of, impl_->plain_kernels); };
      emulator::Report of_launch = impl_->emulated->emulate(call.forward.operands, opts.stream, made, options);
      if (!of_launch.clean()) return of_launch;
      if (make == runtime::make_backward_launch) report = std::move(of_launch);
    }
    return report;
  };
  return runtime::with_batches({dout, q, k, v, out, lse, into, opts, backward}, emulate);
}

Gradients Engine::attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& out, const Tensor& lse, const AttentionOptions& opts,
                                     const BackwardOptions& backward) {
  const GradientTensors none;
  const int device =
      runtime::with_batches({dout, q, k, v, out, lse, none, opts, backward}, [&](const runtime::GivenGradients& given) {
        return impl_->backend.output_device(runtime::validate_backward(given).forward.operands, opts.stream);
      });
  Gradients made{DeviceTensor::allocate(q.dtype, q.shape, opts.stream, device),
                 DeviceTensor::allocate(k.dtype, k.shape, opts.stream, device),
                 DeviceTensor::allocate(v.dtype, v.shape, opts.stream, device)};
  attention_backward(dout, q, k, v, out, lse, {made.dq.view(), made.dk.view(), made.dv.view()}, opts, backward);
  return made;
}

}  // namespace flashjit
