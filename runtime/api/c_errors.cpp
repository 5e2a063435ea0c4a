// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/c_errors.h"

#include <iterator>
#include <string>

namespace flashjit::runtime {
namespace {

constexpr struct {
  flashjit_status status;
  ErrorCode code;
} kStatuses[] = {
    {FLASHJIT_INVALID_ARGUMENT, ErrorCode::invalid_argument},
    {FLASHJIT_UNSUPPORTED, ErrorCode::unsupported},
    {FLASHJIT_NO_DRIVER, ErrorCode::no_driver},
    {FLASHJIT_NO_DEVICE, ErrorCode::no_device},
    {FLASHJIT_NO_COMPILER, ErrorCode::no_compiler},
    {FLASHJIT_COMPILE_FAILED, ErrorCode::compile_failed},
    {FLASHJIT_CACHE_MISS, ErrorCode::cache_miss},
    {FLASHJIT_DRIVER, ErrorCode::driver},
    {FLASHJIT_IO, ErrorCode::io},
    {FLASHJIT_KERNEL_FAULT, ErrorCode::kernel_fault},
    {FLASHJIT_COMMUNICATION, ErrorCode::communication},
};
static_assert(std::size(kStatuses) == static_cast<std::size_t>(ErrorCode::communication) + 1,
              "every code has a status");

// The interface promises the message of this thread's last failure.
thread_local std::string last_error;

}  // namespace

flashjit_status status_of(ErrorCode code) noexcept {
  for (const auto& row : kStatuses) {
    if (row.code == code) return row.status;
  }
  return FLASHJIT_FAILURE;
}

flashjit_status fail(flashjit_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error = "out of memory";  // short enough to need none
  }
  return status;
}

void forget_last_error() noexcept { last_error.clear(); }

}  // namespace flashjit::runtime

extern "C" {

const char* flashjit_status_name(flashjit_status status) {
  if (status == FLASHJIT_OK) return "ok";
  if (status == FLASHJIT_FAILURE) return "failure";
  for (const auto& row : flashjit::runtime::kStatuses) {
    if (row.status == status) return flashjit::to_string(row.code);
  }
  return "?";
}

const char* flashjit_last_error(void) { return flashjit::runtime::last_error.c_str(); }

}  // extern "C"
