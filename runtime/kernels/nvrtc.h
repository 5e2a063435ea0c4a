// SPDX-License-Identifier: Apache-2.0
// NVRTC, opened when the first kernel has to be compiled. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "runtime/kernels/compiler.h"
#include "runtime/kernels/nvrtc_search.h"
#include "runtime/support/logger.h"

namespace flashjit::runtime {

// The target that gives the PTX of an architecture: "sm_90a" -> "compute_90a".
std::string ptx_target(const std::string& architecture);
// The architecture of a target: "compute_90a" and "sm_90a" -> "sm_90a".
std::string architecture_of(const std::string& target);

class Nvrtc : public Compiler {
 public:
  explicit Nvrtc(NvrtcSearch search, Logger log = Logger(nullptr)) : search_(std::move(search)), log_(std::move(log)) {}

  // Without opening the library.
  std::string identity() override;
  std::string path();                  // empty when there is none
  std::vector<std::string> refused();  // libraries that were found and do not serve, each with why
  // Opens the library. When it does not serve the next one is looked for.
  std::string version() override;

  // The options that decide the output beside the source, for cache keys.
  static std::string options_for_key(const std::string& target);

  CompiledImage compile(const std::string& source, const std::string& name, const std::string& target) override;

 private:
  struct Functions;
  class Program;
  class Access;
  const std::optional<NvrtcLocation>& locate();
  const Functions& load();
  Error missing() const;

  const NvrtcSearch search_;
  const Logger log_;
  std::mutex mutex_;  // of what follows; used through Access
  bool located_ = false;
  std::optional<NvrtcLocation> location_;
  NvrtcReport report_;
  std::size_t told_ = 0;                        // of what was refused, in the log
  std::shared_ptr<const Functions> functions_;  // of the library at location_, which does not change any more
};

}  // namespace flashjit::runtime
