// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>

namespace flashjit {

enum class ErrorCode {
  invalid_argument,  // the caller's input: nothing was launched, written or changed
  unsupported,       // legal input that no kernel here can serve (architecture, feature)
  no_driver,         // libcuda could not be loaded, or it is too old
  no_device,         // there is a driver but no usable GPU
  no_compiler,       // a kernel has to be compiled and NVRTC could not be loaded
  compile_failed,    // NVRTC or ptxas refused a source: log() and source_path() say what
  cache_miss,        // policy cache_only, and the kernel is not in the cache
  driver,            // a CUDA driver call failed; the message has its name and error
  io,                // a file could not be read or written
  kernel_fault,      // the emulator found a kernel at fault: the message has the first finding, log() all
  communication,     // between GPUs: NCCL could not be loaded or failed, or a rank was not heard of in time
};

// "invalid_argument", "no_driver", ... for logs.
const char* to_string(ErrorCode code) noexcept;

// what() is one line that names the argument, what it must be and what it was.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string log = {}, std::string source_path = {})
      : std::runtime_error(message), code_(code), log_(std::move(log)), source_path_(std::move(source_path)) {}

  ErrorCode code() const noexcept { return code_; }
  // The NVRTC log (compile_failed), the list of places searched (no_driver, no_compiler) or the emulator's findings
  // (kernel_fault); else empty.
  const std::string& log() const noexcept { return log_; }
  // The file that holds the source NVRTC refused (compile_failed, where one could be written); else empty.
  const std::string& source_path() const noexcept { return source_path_; }

 private:
  ErrorCode code_;
  std::string log_;
  std::string source_path_;
};

}  // namespace flashjit
