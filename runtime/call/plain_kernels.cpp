// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/plain_kernels.h"

namespace flashjit::runtime {

// Threads that want the same kernel at once each render it: the first to finish is kept.
const generator::PlainKernel& PlainKernels::get(const std::string& name, const Render& render) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = rendered_.find(name); it != rendered_.end()) return it->second;
  }
  generator::PlainKernel kernel = render(templates_);
  const std::lock_guard lock(mutex_);
  return rendered_.try_emplace(name, std::move(kernel)).first->second;
}

}  // namespace flashjit::runtime
