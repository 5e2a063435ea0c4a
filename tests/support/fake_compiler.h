// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "generator/source.h"
#include "runtime/kernels/compiler.h"

namespace flashjit::tests {

// A kernel whose source is this text.
inline generator::Source source_of(const std::string& name, const std::string& text) {
  return {name, "entry", "", std::make_shared<const std::string>(text), ""};
}

// A compiler whose images are a function of source and target. Thread-safe when the hook is.
class FakeCompiler : public runtime::Compiler {
 public:
  // The hook is called in the middle of each compile, with the source; what it throws, compile() throws.
  explicit FakeCompiler(std::function<void(const std::string&)> hook = {}) : hook_(std::move(hook)) {}

  static std::string image_of(const std::string& source, const std::string& target) {
    return "image of " + source + " for " + target;
  }

  std::string identity() override { return "fake-1.0"; }
  std::string version() override { return "1.0"; }
  runtime::CompiledImage compile(const std::string& source, const std::string&, const std::string& target) override {
    ++compiles;
    if (hook_) hook_(source);
    runtime::CompiledImage image;
    image.bytes = image_of(source, target);
    image.registers = 168;
    image.milliseconds = 412.5;
    return image;
  }

  std::atomic<int> compiles{0};

 private:
  const std::function<void(const std::string&)> hook_;
};

}  // namespace flashjit::tests
