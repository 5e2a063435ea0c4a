// SPDX-License-Identifier: Apache-2.0
// The reference with users' functions, which the engine's device applies.
#include <cstring>
#include <vector>

#include "flashjit/engine.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/operation.h"
#include "runtime/call/ragged.h"
#include "runtime/reference/reference_scores.h"
#include "runtime/support/reject.h"

namespace flashjit {
namespace {

// Packed in host memory.
HostTensor packed(const Tensor& tensor) {
  HostTensor copy(tensor.dtype, tensor.shape);
  const Dims strides = packed_strides(tensor.shape);
  const std::size_t element = size_of(tensor.dtype);
  for (std::size_t i = 0; i < copy.element_count(); ++i) {
    std::int64_t from = 0;
    for (int dim = 0; dim < tensor.shape.size(); ++dim)
      from += static_cast<std::int64_t>(i) / strides[dim] % tensor.shape[dim] * tensor.strides[dim];
    std::memcpy(static_cast<char*>(copy.data()) + i * element,
                static_cast<const char*>(tensor.data) + from * static_cast<std::int64_t>(element), element);
  }
  return copy;
}

// The functions of options with all that they capture on a device.
class FunctionsOnDevice {
 public:
  FunctionsOnDevice(const AttentionOptions& opts, int device) : device_(device) {
    options.score = opts.score;
    options.mask = opts.mask;
    if (options.score) move(*options.score);
    if (options.mask) move(*options.mask);
    options.query_offsets = move(opts.query_offsets);
    options.key_offsets = move(opts.key_offsets);
  }

  AttentionOptions options;

 private:
  Tensor move(const Tensor& tensor) {
    owned_.push_back(packed(tensor).to_device(nullptr, device_));
    return owned_.back().view();
  }
  std::optional<Tensor> move(const std::optional<Tensor>& tensor) {
    return tensor ? std::optional<Tensor>(move(*tensor)) : std::nullopt;
  }
  void move(Function& function) {
    const std::vector<Capture> captures = function.captures();
    for (const Capture& capture : captures)
      if (const auto* tensor = std::get_if<Tensor>(&capture.value)) function.set({capture.name, move(*tensor)});
  }

  int device_;
  std::vector<DeviceTensor> owned_;
};

// What the users' functions of a call make of scores; it lives no longer than they.
template <class Engine>
class UsersFunctions {
 public:
  UsersFunctions(Engine& engine, const Tensor& q, const AttentionOptions& opts)
      : engine_(engine),
        there_(opts.score || opts.mask),
        shape_(there_ ? shape_of(q, opts) : CallShape{}),
        on_device_(there_ ? opts : AttentionOptions{}, engine.emulated ? kHostMemory : -1) {}

  reference::ScoreHook hook(bool in_f32) const {
    if (!there_) return nullptr;
    return [this, in_f32](const reference::ScoreRows& rows) {
      engine_.apply_functions(on_device_.options, shape_, in_f32, rows);
    };
  }

 private:
  static CallShape shape_of(const Tensor& q, const AttentionOptions& opts) {
    if (q.shape.size() < 3) runtime::reject("q: must have rank 4");
    const bool lacks_batch = runtime::lacks_batch(q, opts.cu_seqlens_q);
    const std::int64_t batch = opts.cu_seqlens_q ? opts.cu_seqlens_q->shape[0] - 1 : q.shape[0];
    return {batch, 0, 0, q.shape[lacks_batch ? 1 : 2], 1};
  }

  Engine& engine_;
  const bool there_;
  const CallShape shape_;
  const FunctionsOnDevice on_device_;
};

}  // namespace

// Applies the functions to rows of scores. Called by several threads at once.
void Engine::Impl::apply_functions(const AttentionOptions& on_device, CallShape shape, bool in_f32,
                                   const reference::ScoreRows& rows) {
  if (rows.scores.empty()) return;
  shape.seqlen_q = rows.seqlen_q, shape.seqlen_kv = rows.seqlen_kv;
  const Dims dims{rows.count, rows.seqlen_kv};
  const int device = emulated ? kHostMemory : -1;
  const DeviceTensor scores = DeviceTensor::from_host(Tensor(rows.scores.data(), DType::f64, dims), nullptr, device);
  const DeviceTensor slopes = rows.slopes ? DeviceTensor::allocate(DType::f64, dims, nullptr, device) : DeviceTensor();
  const auto of_slopes = rows.slopes ? std::optional<Tensor>(slopes.view()) : std::nullopt;
  const runtime::ForwardCall call = runtime::validate_function_scores(on_device, shape, scores, of_slopes);
  backend.run(call.operands, nullptr, [&](const Architecture& architecture) {
    return runtime::make_function_scores_launch(call, scores, of_slopes,
                                                {rows.batch, rows.head, rows.first_row, rows.count}, in_f32,
                                                architecture, plain_kernels);
  });
  scores.copy_to_host(rows.scores.data());
  if (rows.slopes) slopes.copy_to_host(rows.slopes->data());
}

reference::Result Engine::reference(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  const UsersFunctions functions(*impl_, q, opts);
  return reference::attention(q, k, v, opts, functions.hook(false));
}

reference::Result Engine::reference_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const AttentionOptions& opts) {
  const UsersFunctions functions(*impl_, q, opts);
  return reference::attention_in_low_precision(q, k, v, opts, functions.hook(true));
}

reference::Gradients Engine::reference_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                const AttentionOptions& opts, const std::optional<Tensor>& dlse) {
  const UsersFunctions functions(*impl_, q, opts);
  return reference::attention_backward({dout, q, k, v, opts, dlse}, functions.hook(false));
}

reference::Gradients Engine::reference_backward_in_low_precision(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                                 const Tensor& v, const AttentionOptions& opts,
                                                                 const std::optional<Tensor>& dlse) {
  const UsersFunctions functions(*impl_, q, opts);
  return reference::attention_backward_in_low_precision({dout, q, k, v, opts, dlse}, functions.hook(true));
}

}  // namespace flashjit
