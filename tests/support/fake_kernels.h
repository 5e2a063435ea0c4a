// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "generator/variant_space.h"
#include "runtime/kernels/cache_layers.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/kernels/wanted_kernel.h"
#include "tests/support/fake_compiler.h"

namespace flashjit::tests {

struct FakeKernel {
  int head_dim;
  std::string architecture;
  bool ptx = false;
  std::string variant = {};                        // empty: the default
  const generator::FunctionText* score = nullptr;  // of a user
};

// Fills the cache of these options with kernels that are real but for their images. Gives a bundle of them.
inline std::string make_fake_kernels(const EngineOptions& options, const std::vector<FakeKernel>& kernels) {
  FakeCompiler compiler;
  const runtime::Logger log(nullptr);
  const runtime::CacheLayers layers = runtime::make_cache_layers(options);
  runtime::KernelStore store({Policy::compile, layers.user, layers.all}, compiler, log);
  for (const FakeKernel& kernel : kernels) {
    Problem problem;
    problem.head_dim = problem.head_dim_v = kernel.head_dim;
    problem.score = kernel.score;
    const Architecture& architecture = find_architecture(kernel.architecture);
    const Variant variant =
        kernel.variant.empty() ? generator::default_variant(problem, architecture, {}) : parse_variant(kernel.variant);
    const std::string target = kernel.ptx ? runtime::ptx_target(kernel.architecture) : kernel.architecture;
    store.get(runtime::WantedKernel({problem, variant, architecture}, generator::embedded_templates(), target).request);
  }
  return store.bundle();
}

}  // namespace flashjit::tests
