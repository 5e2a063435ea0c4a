// SPDX-License-Identifier: Apache-2.0
// NVRTC, opened when the first kernel has to be compiled. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "flashjit/problem.h"
#include "runtime/nvrtc_search.h"

namespace flashjit::runtime {

struct CompiledImage {
  std::string bytes;  // a cubin, or PTX
  std::string log;
  int registers = 0;    // this and the next two: of a cubin
  int spill_bytes = 0;  // stores and loads
  int stack_bytes = 0;
  double milliseconds = 0;
};

// The target that gives the PTX of an architecture: "sm_90a" -> "compute_90a".
std::string ptx_target(const std::string& architecture);

class Nvrtc {
 public:
  explicit Nvrtc(NvrtcSearch search) : search_(std::move(search)) {}

  // The identity of the build that compile() would use, without opening it; empty when there is none.
  std::string identity();
  std::string path();      // empty when there is none
  std::string searched();  // the places looked at, one a line
  // Opens the library. Throws Error(no_compiler).
  std::string version();

  // The options that decide the output beside the source, for cache keys.
  static std::string options_for_key(const std::string& target);

  // target: "sm_90a" gives a cubin, "compute_90a" PTX with line information. name: the file name in messages.
  // Throws Error(no_compiler, unsupported, compile_failed).
  CompiledImage compile(const std::string& source, const std::string& name, const std::string& target);

 private:
  struct Functions;
  class Program;
  const std::optional<NvrtcLocation>& locate();
  const Functions& load();

  const NvrtcSearch search_;
  std::once_flag located_;
  std::optional<NvrtcLocation> location_;
  std::string searched_;
  std::mutex loading_;
  std::shared_ptr<const Functions> functions_;
};

}  // namespace flashjit::runtime
