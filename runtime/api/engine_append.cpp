// SPDX-License-Identifier: Apache-2.0
// New keys and values, written into a cache by the engine's device.
#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/append.h"

namespace flashjit {

void Engine::append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
                    const AppendOptions& opts) {
  const runtime::AppendCall call(k, v, k_cache, v_cache, opts);
  if (call.nothing_to_do()) return;
  if (impl_->options.check_pages)
    impl_->backend.look_at(call.operands, opts.stream,
                           [&](const runtime::ReadInts& read) { check_tokens(call, read); });
  impl_->backend.run(call.operands, opts.stream, [&](const Architecture& architecture) {
    return runtime::make_append_launch(call, architecture, impl_->plain_kernels);
  });
}

KernelFacts Engine::compile_append(const AppendProblem& problem, std::string_view architecture) {
  const Architecture& target = find_architecture(architecture);
  return impl_->kernels.compile(runtime::append_kernel(problem, target, impl_->plain_kernels), target);
}

}  // namespace flashjit
