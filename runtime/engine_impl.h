// SPDX-License-Identifier: Apache-2.0
// What an engine is made of.
#pragma once

#include "flashjit/engine.h"
#include "generator/source.h"
#include "runtime/kernel_store.h"
#include "runtime/kernels.h"
#include "runtime/logger.h"
#include "runtime/nvrtc.h"

namespace flashjit {

struct Engine::Impl {
  explicit Impl(EngineOptions given);

  const EngineOptions options;
  const generator::Templates own_templates;  // empty: those inside the library
  const generator::Templates& templates;
  const runtime::Logger log;
  // Finding the compiler and describing the engine change nothing that a caller can see.
  mutable runtime::Nvrtc nvrtc;
  runtime::KernelStore store;
  runtime::Kernels kernels;
};

}  // namespace flashjit
