// SPDX-License-Identifier: Apache-2.0
// The device code that kernels are rendered from.
#pragma once

#include <map>
#include <memory>
#include <string>

namespace flashjit::generator {

// A set of template files. Copies share what they hold. Thread-safe.
class Templates {
 public:
  // By their path below templates/, e.g. "kernels/flash_fwd_mma.cuh".
  using Files = std::map<std::string, std::string, std::less<>>;

  Templates() : Templates(Files{}) {}
  explicit Templates(Files files);

  const Files& files() const;
  // A file without comments and with its includes put in place, each file once. Made at first use and kept, as each
  // look-up in the cache needs it. Throws Error(io) which names a file that is not there.
  std::shared_ptr<const std::string> flatten(const std::string& path) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The copy inside the library.
const Templates& embedded_templates();

}  // namespace flashjit::generator
