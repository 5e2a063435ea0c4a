// SPDX-License-Identifier: Apache-2.0
// Engines that emulate an architecture and leave nothing on the disk.
#pragma once

#include <string>

#include "flashjit/engine.h"
#include "tests/support/kept_kernels.h"

namespace flashjit::tests {

inline EngineOptions emulating(const std::string& architecture) {
  EngineOptions options = options_with_kept_kernels();
  options.emulate = architecture;
  return options;
}

// One of each, for all tests of a program: it compiles each kernel once.
inline Engine& engine_for(const std::string& architecture) {
  static Engine sm_80(emulating("sm_80")), sm_86(emulating("sm_86")), sm_89(emulating("sm_89")),
      sm_90a(emulating("sm_90a")), sm_120a(emulating("sm_120a"));
  return architecture == "sm_80"     ? sm_80
         : architecture == "sm_86"   ? sm_86
         : architecture == "sm_89"   ? sm_89
         : architecture == "sm_120a" ? sm_120a
                                     : sm_90a;
}

}  // namespace flashjit::tests
