// SPDX-License-Identifier: Apache-2.0
// Ragged batches without a GPU: real kernels in the emulator, which knows which memory they may touch, against the
// reference, with NaN around every sequence.
#include <doctest/doctest.h>

#include <string>

#include "flashjit/flashjit.h"
#include "runtime/support/parallel.h"
#include "tests/support/ragged_batch.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using tests::RaggedBatch;

Engine& engine_for(const char* architecture) {
  const auto emulating = [](const char* name) {
    EngineOptions options = EngineOptions::from_environment();
    options.policy = Policy::off;
    options.emulate = name;
    return options;
  };
  static Engine sm_80(emulating("sm_80")), sm_90a(emulating("sm_90a"));
  return std::string(architecture) == "sm_80" ? sm_80 : sm_90a;
}

}  // namespace

TEST_CASE("sequences of any lengths, packed or padded, with empty ones among them") {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    CAPTURE(architecture);
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      CAPTURE(seed);
      RaggedBatch(seed, {}).check(engine_for(architecture));
    }
  }
}
