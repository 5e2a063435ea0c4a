// SPDX-License-Identifier: Apache-2.0
// The kernels beside those of attention that an engine has rendered: each once, as rendering takes a call longer than
// all else that it does.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "generator/source.h"
#include "generator/templates.h"

namespace flashjit::runtime {

// Thread-safe. Templates must outlive it.
class PlainKernels {
 public:
  explicit PlainKernels(const generator::Templates& templates) : templates_(templates) {}

  // name: of all that tells the kernel from others of the engine. The reference is valid as long as this is.
  using Render = std::function<generator::PlainKernel(const generator::Templates& templates)>;
  const generator::PlainKernel& get(const std::string& name, const Render& render);

 private:
  const generator::Templates& templates_;
  std::mutex mutex_;  // of what follows
  std::map<std::string, generator::PlainKernel> rendered_;
};

}  // namespace flashjit::runtime
