// SPDX-License-Identifier: Apache-2.0
// NVRTC, opened when the first kernel has to be compiled. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/compiler.h"
#include "runtime/nvrtc_search.h"

namespace flashjit::runtime {

// The target that gives the PTX of an architecture: "sm_90a" -> "compute_90a".
std::string ptx_target(const std::string& architecture);
// The architecture of a target: "compute_90a" and "sm_90a" -> "sm_90a".
std::string architecture_of(const std::string& target);

class Nvrtc : public Compiler {
 public:
  explicit Nvrtc(NvrtcSearch search) : search_(std::move(search)) {}

  // Without opening the library.
  std::string identity() override;
  std::string path();      // empty when there is none
  std::string searched();  // the places looked at, one a line
  // Opens the library.
  std::string version() override;

  // The options that decide the output beside the source, for cache keys.
  static std::string options_for_key(const std::string& target);

  CompiledImage compile(const std::string& source, const std::string& name, const std::string& target) override;

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
