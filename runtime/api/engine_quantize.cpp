// SPDX-License-Identifier: Apache-2.0
// Rows made e4m3 or e5m2 by the engine's device.
#include "flashjit/engine.h"
#include "generator/dtype.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/quantize.h"
#include "runtime/support/reject.h"

namespace flashjit {

void Engine::quantize(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts) {
  using generator::QuantizePass;
  runtime::QuantizeCall call(x, out, scale, opts);
  if (call.nothing_to_do()) return;
  if (impl_->options.check_pages && opts.scale_is_given)
    impl_->backend.look_at(call.operands, opts.stream,
                           [&](const runtime::ReadInts& read) { check_given_scales(call, read); });
  const std::int64_t resident_blocks = impl_->backend.resident_blocks(call.operands, opts.stream);
  const auto run = [&](QuantizePass pass) {
    impl_->backend.run(call.operands, opts.stream, [&](const Architecture& architecture) {
      return runtime::make_quantize_launch(call, pass, architecture, resident_blocks, impl_->plain_kernels);
    });
  };
  DeviceTensor maxima;
  if (call.needs_maxima()) {
    const int device = impl_->backend.output_device(call.operands, opts.stream);
    maxima = DeviceTensor::allocate(DType::f32, call.maxima_shape(), opts.stream, device);
    call.add_maxima(maxima);
    run(QuantizePass::maxima);
  }
  run(last_pass(call));
}

Quantized Engine::quantize(const Tensor& x, const QuantizeOptions& opts, DType dtype) {
  if (!generator::is_of_8_bits(dtype)) runtime::reject("dtype: must be e4m3 or e5m2, was {}", to_string(dtype));
  if (opts.scale_is_given) runtime::reject("scale_is_given: must be false where scales are made, was true");
  const Dims of_scales = runtime::scale_shape(x, opts);
  runtime::Operands operands;
  const Tensor rows = x.shape.size() == runtime::kRank ? x : runtime::with_batch(x);
  runtime::check_shape("x", rows, runtime::kRowsRules);
  runtime::add_operand(operands, "x", rows, runtime::Operand::Role::rows, false);
  const int device = impl_->backend.output_device(operands, opts.stream);
  Quantized made{DeviceTensor::allocate(dtype, x.shape, opts.stream, device),
                 DeviceTensor::allocate(DType::f32, of_scales, opts.stream, device)};
  quantize(x, made.out, made.scale, opts);
  return made;
}

}  // namespace flashjit
