// SPDX-License-Identifier: Apache-2.0
// Kernels that tests compile stay in the build folder.
#pragma once

#include "flashjit/engine.h"

namespace flashjit::tests {

// Compiling is most of what tests of kernels take, and many want the same kernel: any of this or of a later run finds
// what one has compiled. An entry of the cache is named by all that its kernel is made of.
inline EngineOptions options_with_kept_kernels() {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::compile;
  options.cache_directory = FLASHJIT_KEPT_KERNELS;
  options.cache_max_bytes = std::uint64_t{8} << 30;
  return options;
}

// Those that an engine has had to get so far, from the compiler or from what was kept.
inline std::uint64_t kernels_of(const Engine& engine) {
  const Counters counters = engine.counters();
  return counters.compiles + counters.user_hits;
}

}  // namespace flashjit::tests
