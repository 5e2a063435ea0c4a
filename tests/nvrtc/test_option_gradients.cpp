// SPDX-License-Identifier: Apache-2.0
// Gradients of sinks by kernels in the emulator, against the reference.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"
#include "tests/support/backward_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using tests::code_of;
using tests::engine_for;

using Case = tests::BackwardCase;
using Sizes = tests::BackwardSizes;
using O = AttentionOptions;

Case case_of_options(const Sizes& sizes = {}) {
  Case c(sizes);
  c.of_options = true;
  c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 5);
  return c;
}

}  // namespace

TEST_CASE("gradients of sinks, by both families, for all batch entries and for each, in rows that see nothing too") {
  struct Way {
    const char *architecture, *variant;
    int head_dim;
  };
  for (const auto& [architecture, variant, head_dim] : {Way{"sm_80", "mma-q64-kv128-w8-r1-s1", 32},
                                                        {"sm_90a", "hopper-q128-kv128", 64},
                                                        {"sm_90a", "hopper-q64-kv128", 128},
                                                        {"sm_90a", "hopper-q64-kv64", 256}})
    for (const Dims& shape : {Dims{4}, Dims{2, 4}})
      for (const bool sees_little : {false, true}) {
        CAPTURE(std::string(variant));
        CAPTURE(shape.size());
        CAPTURE(sees_little);
        Case c = case_of_options({.seqlen_q = 150, .seqlen_kv = 100, .head_dim = head_dim, .head_dim_v = head_dim});
        c.variant = parse_backward_variant(variant);
        if (sees_little) c.options.causal = true, c.options.window.left = 20;
        c.values(&O::sinks, DType::f32, shape, [](std::int64_t i) { return 2. - i; });
        c.check(engine_for(architecture));
      }
}
