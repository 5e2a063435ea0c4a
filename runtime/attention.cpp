// SPDX-License-Identifier: Apache-2.0
// The free functions, on the default engine.
#include "flashjit/attention.h"

#include "flashjit/engine.h"

namespace flashjit {

Engine& default_engine() {
  // Never destroyed: at the end of the process the driver may be gone before it, and other threads may still use it.
  static Engine* const engine = new Engine(EngineOptions::from_environment());
  return *engine;
}

DeviceTensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  return default_engine().attention(q, k, v, opts);
}

void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const AttentionOptions& opts) {
  default_engine().attention(q, k, v, out, opts);
}

}  // namespace flashjit
