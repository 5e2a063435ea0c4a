// SPDX-License-Identifier: Apache-2.0
// Errors through C: exceptions become status codes and this thread's message.
#pragma once

#include <exception>

#include "flashjit.h"
#include "flashjit/error.h"

namespace flashjit::runtime {

flashjit_status status_of(ErrorCode code) noexcept;
// Keeps the message as that of this thread's last failure.
flashjit_status fail(flashjit_status status, const char* message) noexcept;
void forget_last_error() noexcept;

// No exception leaves the library through C.
template <typename Work>
flashjit_status guarded(Work work) noexcept {
  try {
    forget_last_error();
    work();
    return FLASHJIT_OK;
  } catch (const Error& error) {
    return fail(status_of(error.code()), error.what());
  } catch (const std::exception& error) {
    return fail(FLASHJIT_FAILURE, error.what());
  } catch (...) {
    return fail(FLASHJIT_FAILURE, "unknown failure");
  }
}

}  // namespace flashjit::runtime
