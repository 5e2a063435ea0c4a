// SPDX-License-Identifier: Apache-2.0
// Functions of a library that is opened at run time, so that nobody needs it who does not use it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "flashjit/error.h"

namespace flashjit::distributed {

class OpenedLibrary {
 public:
  // Where the process has it already, that one. Throws Error(code). It stays open.
  OpenedLibrary(const char* name, ErrorCode code) : name_(name), code_(code), handle_(dlopen(name, RTLD_NOW)) {
    if (handle_) return;
    const char* reason = dlerror();
    throw Error(code, std::string(name) + ": must be loadable, was not: " + (reason ? reason : "no reason was given"));
  }

  template <typename Function>
  void find(const char* function, Function*& found) const {
    found = reinterpret_cast<Function*>(dlsym(handle_, function));
    if (!found) throw Error(code_, std::string(name_) + ": must have " + function + ", had not");
  }

 private:
  const char* name_;
  ErrorCode code_;
  void* handle_;
};

}  // namespace flashjit::distributed
