// SPDX-License-Identifier: Apache-2.0
// Faults that are planted in backward kernels.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "flashjit/error.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace flashjit::tests {

struct BackwardFault {
  const char *name, *file, *original, *replacement;
  bool is_wide = false;
};

// By one of so many cases. is_right(i, options): of engines whose templates have the fault.
inline void check_found(const BackwardFault& fault, const char* architecture, int cases,
                        const std::function<bool(int, const EngineOptions&)>& is_right) {
  CAPTURE(std::string(fault.name));
  const TemporaryDirectory directory;
  plant(fault.file, fault.original, fault.replacement, directory / "templates");
  EngineOptions options = emulating(architecture);
  options.template_directory = (directory / "templates").string();
  options.emulation.most_instructions = 30'000'000;  // where blocks wait for each other for ever
  bool right = true;
  try {
    for (int i = 0; right && i < cases; ++i) right = is_right(i, options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kernel_fault);
    right = false;
  }
  CHECK_FALSE(right);
}

}  // namespace flashjit::tests
