// SPDX-License-Identifier: Apache-2.0
// Rows added up by the engine's device.
#include <vector>

#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/sum.h"

namespace flashjit {

void Engine::sum(const std::vector<Tensor>& parts, const Tensor& out, Stream stream) {
  const runtime::SumCall call = runtime::validate_sum(parts, out);
  if (call.nothing_to_do()) return;
  impl_->backend.run(call.operands, stream, [&](const Architecture& architecture) {
    return runtime::make_sum_launch(call, architecture, impl_->plain_kernels);
  });
}

void Engine::prepare_sum(const std::vector<Tensor>& parts, const Tensor& out, Stream stream) {
  const runtime::SumCall call = runtime::validate_sum(parts, out);
  if (call.nothing_to_do()) return;
  impl_->backend.prepare(call.operands, stream, [&](const Architecture& architecture) {
    return runtime::make_sum_launch(call, architecture, impl_->plain_kernels);
  });
}

KernelFacts Engine::compile_sum(DType part, DType out, std::string_view architecture) {
  const Architecture& target = find_architecture(architecture);
  return impl_->kernels.compile(runtime::sum_kernel(part, out, target, impl_->plain_kernels), target);
}

}  // namespace flashjit
