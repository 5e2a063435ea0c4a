// SPDX-License-Identifier: Apache-2.0
// The free functions, on the default engine.
#include "flashjit/attention.h"

#include <cstdlib>

#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"

namespace flashjit {

Engine& default_engine() {
  // Never destroyed: at the end of the process the driver may be gone before it, and other threads may still use it.
  static Engine* const engine = [] {
    auto* made = new Engine(EngineOptions::from_environment());
    std::atexit([] { engine->impl_->store.flush_totals(); });
    return made;
  }();
  return *engine;
}

DeviceTensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  return default_engine().attention(q, k, v, opts);
}

void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const AttentionOptions& opts) {
  default_engine().attention(q, k, v, out, opts);
}

Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse, const AttentionOptions& opts, const BackwardOptions& backward) {
  return default_engine().attention_backward(dout, q, k, v, out, lse, opts, backward);
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const GradientTensors& into, const AttentionOptions& opts,
                        const BackwardOptions& backward) {
  default_engine().attention_backward(dout, q, k, v, out, lse, into, opts, backward);
}

void append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const AppendOptions& opts) {
  default_engine().append(k, v, k_cache, v_cache, opts);
}

void quantize(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts) {
  default_engine().quantize(x, out, scale, opts);
}

Quantized quantize(const Tensor& x, const QuantizeOptions& opts, DType dtype) {
  return default_engine().quantize(x, opts, dtype);
}

void merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts) {
  default_engine().merge(parts, out, opts);
}

DeviceTensor merge(const std::vector<Partial>& parts, const MergeOptions& opts) {
  return default_engine().merge(parts, opts);
}

void sum(const std::vector<Tensor>& parts, const Tensor& out, Stream stream) {
  default_engine().sum(parts, out, stream);
}

}  // namespace flashjit
