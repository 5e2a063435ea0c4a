// SPDX-License-Identifier: Apache-2.0
// For GPU tests of what kernels of the hopper family alone have.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cli/verify/cases.h"
#include "tests/gpu/attention_case.h"

namespace flashjit::tests {

inline constexpr const char* kHopper = "sm_90a";

// False, and said so, where a file has nothing to run on.
inline bool has_hopper() {
  if (test_device().architecture == kHopper) return true;
  MESSAGE("device 0 is not of sm_90a: nothing to test");
  return false;
}

// Every variant of the problem on this device, in all of the shapes that it may have, against the reference.
inline void verify_variants(const Problem& problem, const std::vector<cli::CaseShape>& shapes) {
  const std::string& architecture = test_device().architecture;
  const std::vector<Variant> variants = shared_engine().variants(problem, architecture);
  compile_all(problem, variants, architecture);
  for (const cli::CaseShape& shape : cli::shapes_for(problem, shapes)) {
    const cli::VerifyCase c(problem, shape, test_device().ordinal);
    for (const Variant& variant : variants) {
      CAPTURE(to_string(problem));
      CAPTURE(to_string(shape));
      CAPTURE(to_string(variant));
      CHECK(c.problem_with(shared_engine(), variant) == "");
    }
  }
}

inline DeviceTensor on_device(const HostTensor& tensor) { return tensor.to_device(nullptr, test_device().ordinal); }

}  // namespace flashjit::tests
