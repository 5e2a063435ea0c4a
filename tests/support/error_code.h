// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "flashjit/error.h"

namespace flashjit::tests {

// The code, and if wanted the message, of the Error that work throws; it is a failure if it throws none.
inline ErrorCode code_of(const std::function<void()>& work, std::string* message = nullptr) {
  try {
    work();
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.code();
  }
  FAIL("an Error was expected");
  return ErrorCode::io;
}

}  // namespace flashjit::tests
