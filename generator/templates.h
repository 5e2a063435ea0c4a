// SPDX-License-Identifier: Apache-2.0
// The device code that kernels are rendered from.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace flashjit::generator {

// A set of template files. Copies share what they hold. Thread-safe.
class Templates {
 public:
  // By their path below templates/, e.g. "kernels/mma_forward.cuh".
  using Files = std::map<std::string, std::string, std::less<>>;

  Templates() : Templates(Files{}) {}
  explicit Templates(Files files);

  const Files& files() const;
  // These files, one after the other, without comments and with their includes put in place, each file once. Made at
  // first use and kept, as each look-up in the cache needs it. Throws Error(io) which names a file that is not there.
  std::shared_ptr<const std::string> flatten(const std::vector<std::string>& paths) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The copy inside the library.
const Templates& embedded_templates();

}  // namespace flashjit::generator
