// SPDX-License-Identifier: Apache-2.0
// Partial results, joined by the engine's device.
#include <vector>

#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/merge.h"
#include "runtime/support/reject.h"

namespace flashjit {

void Engine::Impl::merge(const runtime::MergeTurn& turn, const Tensor& out, const MergeOptions& opts) {
  const runtime::MergeCall call = runtime::validate_merge(turn, out, opts.lse);
  if (call.nothing_to_do()) return;
  backend.run(call.operands, opts.stream, [&](const Architecture& architecture) {
    return runtime::make_merge_launch(call, architecture, plain_kernels);
  });
}

void Engine::merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts) {
  const std::vector<runtime::MergeTurn> turns = runtime::merge_turns(parts, out, opts.lse);
  // All are checked before the first one writes.
  for (const runtime::MergeTurn& turn : turns) runtime::validate_merge(turn, out, opts.lse);
  for (const runtime::MergeTurn& turn : turns) impl_->merge(turn, out, opts);
}

void Engine::prepare_merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts) {
  for (const runtime::MergeTurn& turn : runtime::merge_turns(parts, out, opts.lse)) {
    const runtime::MergeCall call = runtime::validate_merge(turn, out, opts.lse);
    if (call.nothing_to_do()) return;
    impl_->backend.prepare(call.operands, opts.stream, [&](const Architecture& architecture) {
      return runtime::make_merge_launch(call, architecture, impl_->plain_kernels);
    });
  }
}

KernelFacts Engine::compile_merge(DType part, DType out, std::string_view architecture) {
  const Architecture& target = find_architecture(architecture);
  return impl_->kernels.compile(runtime::merge_kernel(part, out, target, impl_->plain_kernels), target);
}

DeviceTensor Engine::merge(const std::vector<Partial>& parts, const MergeOptions& opts) {
  if (parts.empty()) runtime::reject("parts: must have at least 1, had 0");
  const Tensor& first = parts.front().out;
  const int device = impl_->backend.output_device(runtime::operands_of_first(parts.front()), opts.stream);
  DeviceTensor out = DeviceTensor::allocate(first.dtype, first.shape, opts.stream, device);
  merge(parts, out.view(), opts);
  return out;
}

}  // namespace flashjit
