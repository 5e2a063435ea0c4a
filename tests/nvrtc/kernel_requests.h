// SPDX-License-Identifier: Apache-2.0
// Kernels that no engine compiles by itself, of their sources.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/support/logger.h"
#include "runtime/support/parallel.h"
#include "tests/nvrtc/kernel_jobs.h"
#include "tests/support/sample.h"

namespace flashjit::tests {

// Compiles a sample of them side by side and expects of each that it spills no more than is known of it, and has
// nothing else in local memory.
inline void expect_no_spills(const std::vector<runtime::KernelRequest>& all) {
  const EngineOptions options = EngineOptions::from_environment();
  const runtime::Logger log(nullptr);
  runtime::Nvrtc nvrtc({options.nvrtc_path, options.nvrtc_directories}, log);
  runtime::KernelStoreOptions without_cache;
  without_cache.policy = Policy::off;
  runtime::KernelStore store(without_cache, nvrtc, log);
  const std::vector<runtime::KernelRequest> requests = sample(all);
  std::vector<std::string> faults(requests.size());
  runtime::parallel_for(requests.size(), [&](std::size_t i) {
    const auto image = store.get(requests[i]).image;
    const int known = known_spill(nvrtc.version(), requests[i].source().name);
    if (image->spill_bytes > known || (image->stack_bytes != 0 && known == 0) || image->registers == 0)
      faults[i] = requests[i].source().name + " spills " + std::to_string(image->spill_bytes);
  });
  for (const std::string& fault : faults) CHECK(fault == "");
}

}  // namespace flashjit::tests
