// SPDX-License-Identifier: Apache-2.0
// What turns a source into the image of a kernel. There is one, Nvrtc; tests of the cache have others.
#pragma once

#include <string>

namespace flashjit::runtime {

struct CompiledImage {
  std::string bytes;  // a cubin, or PTX
  std::string log;
  int registers = 0;    // this and the next two: of a cubin
  int spill_bytes = 0;  // stores and loads
  int stack_bytes = 0;
  double milliseconds = 0;
};

// Thread-safe.
class Compiler {
 public:
  virtual ~Compiler() = default;
  // Of the build that compile() would use; empty when there is none. [a-z0-9.-] It is found without opening it, so it
  // is another one after version() or compile() if this one turned out not to serve.
  virtual std::string identity() = 0;
  // Throws Error(no_compiler).
  virtual std::string version() = 0;
  // target: "sm_90a" gives a cubin, "compute_90a" PTX with line information. name: the file name in messages.
  // Throws Error(no_compiler, unsupported, compile_failed).
  virtual CompiledImage compile(const std::string& source, const std::string& name, const std::string& target) = 0;
};

}  // namespace flashjit::runtime
