// SPDX-License-Identifier: Apache-2.0
// The reference through C.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "flashjit.h"
#include "flashjit/reference.h"
#include "runtime/api/c_arguments.h"
#include "runtime/api/c_errors.h"
#include "runtime/api/c_struct.h"

namespace {

using namespace flashjit::runtime;
using flashjit::Dims;
using flashjit::DType;
using flashjit::Engine;
using flashjit::Tensor;

constexpr const char* kRows = "f16, bf16, f32 or f64";

Tensor host_view(const char* name, const DLTensor* tensor, const char* dtypes = kRows) {
  return to_tensor(name, tensor, MemoryKind::reference, dtypes);
}

flashjit::AttentionOptions options_of(const flashjit_attention_options* given) {
  flashjit::AttentionOptions options = to_attention_options(given, MemoryKind::reference);
  if (options.lse) reject("lse: must not be given among the options of the reference, which takes it as an argument");
  return options;
}

// Where results go; NULL: nowhere.
class Doubles {
 public:
  Doubles(const char* name, const DLTensor* given) : name_(name) {
    if (!given) return;
    tensor_ = host_view(name, given, "f64");
    if (tensor_->dtype != DType::f64) reject("{}: dtype must be f64, was {}", name, to_string(tensor_->dtype));
  }

  void require_shape(const Dims& shape) const {
    if (!tensor_) return;
    if (tensor_->shape != shape || tensor_->strides.size() != shape.size())
      reject("{}: shape must be {}, was {}", name_, to_string(shape), to_string(tensor_->shape));
    const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    if (!tensor_->data && !is_empty) reject("{}: must point to host memory, was null", name_);
  }

  void require_shape_of(const char* option, const std::optional<Tensor>& of) const {
    if (tensor_ && !of) reject("{}: must not be given without {}, of which it is the gradient", name_, option);
    if (tensor_) require_shape(of->shape);
  }

  void write(const std::vector<double>& packed) const {
    if (!tensor_) return;
    const Dims steps = flashjit::packed_strides(tensor_->shape);
    for (std::size_t i = 0; i < packed.size(); ++i) {
      std::int64_t to = 0;
      for (int dim = 0; dim < steps.size(); ++dim)
        to += static_cast<std::int64_t>(i) / steps[dim] % tensor_->shape[dim] * tensor_->strides[dim];
      flashjit::store_element(tensor_->data, DType::f64, to, packed[i]);
    }
  }

 private:
  const char* name_;
  std::optional<Tensor> tensor_;
};

// [total, heads, head_dim], or with a batch.
bool has_rows(const Tensor& tensor) {
  const Dims& shape = tensor.shape;
  return (shape.size() == 3 || shape.size() == 4) &&
         std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size >= 0; });
}

// Of an output [..., seqlen_q, num_heads_q, head_dim_v]: [..., num_heads_q, seqlen_q].
Dims lse_dims(const Dims& out) {
  Dims dims(out.begin(), static_cast<std::size_t>(std::max(0, out.size() - 1)));
  if (dims.size() >= 2) std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  return dims;
}

void compute(Engine& engine, const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* out,
             const DLTensor* lse, const flashjit_attention_options* options) {
  constexpr const char* kKeys = "f16, bf16, f32, f64, e4m3 or e5m2";
  // One after the other, so that of several errors the first is told.
  const Tensor q_view = host_view("q", q), k_view = host_view("k", k, kKeys), v_view = host_view("v", v, kKeys);
  const Doubles to("out", &require("out", out)), to_lse("lse", lse);
  if (has_rows(q_view) && has_rows(v_view)) {  // else they are refused by their names
    Dims shape = q_view.shape;
    shape[shape.size() - 1] = v_view.shape[v_view.shape.size() - 1];
    to.require_shape(shape);
    to_lse.require_shape(lse_dims(shape));
  }
  const flashjit::reference::Result result = engine.reference(q_view, k_view, v_view, options_of(options));
  to.write(result.out);
  to_lse.write(result.lse);
}

void compute_backward(Engine& engine, const DLTensor* dout, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                      const DLTensor* dlse, const flashjit_gradients& into, const flashjit_attention_options* options) {
  const Tensor of_out = host_view("dout", dout), q_view = host_view("q", q), k_view = host_view("k", k),
               v_view = host_view("v", v);
  std::optional<Tensor> of_lse;
  if (dlse) of_lse = host_view("dlse", dlse, "f32 or f64");
  is_deterministic(into);  // as the reference always is; what that refuses is refused
  const Doubles dq("dq", into.dq), dk("dk", into.dk), dv("dv", into.dv);
  const flashjit::AttentionOptions given = options_of(options);
  const Doubles dbias("dbias", into.dbias), dslopes("dslopes", into.dslopes), dsinks("dsinks", into.dsinks);
  dbias.require_shape_of("bias", given.bias);
  dslopes.require_shape_of("alibi_slopes", given.alibi_slopes);
  dsinks.require_shape_of("sinks", given.sinks);
  if (has_rows(q_view) && has_rows(k_view) && has_rows(v_view)) {
    dq.require_shape(q_view.shape);
    dk.require_shape(k_view.shape);
    dv.require_shape(v_view.shape);
  }
  const flashjit::reference::Gradients gradients =
      engine.reference_backward(of_out, q_view, k_view, v_view, given, of_lse);
  dq.write(gradients.dq);
  dk.write(gradients.dk);
  dv.write(gradients.dv);
  dbias.write(gradients.dbias);
  dslopes.write(gradients.dslopes);
  dsinks.write(gradients.dsinks);
}

}  // namespace

extern "C" {

flashjit_status flashjit_reference(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                   const DLTensor* out, const DLTensor* lse,
                                   const flashjit_attention_options* options) {
  return guarded([&] { compute(engine_of(engine), q, k, v, out, lse, options); });
}

flashjit_status flashjit_reference_backward(flashjit_engine* engine, const DLTensor* dout, const DLTensor* q,
                                            const DLTensor* k, const DLTensor* v, const DLTensor* dlse,
                                            const flashjit_gradients* into, const flashjit_attention_options* options) {
  return guarded(
      [&] { compute_backward(engine_of(engine), dout, q, k, v, dlse, read_struct(require("into", into)), options); });
}

}  // extern "C"
