// SPDX-License-Identifier: Apache-2.0
// A call for gradients with its inputs on the host, and the check of what an engine makes of it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.h"

namespace flashjit::tests {

struct BackwardSizes {
  std::int64_t batch = 2, seqlen_q = 70, seqlen_kv = 100, num_heads_q = 4, num_heads_kv = 2;
  int head_dim = 64, head_dim_v = 64;
};

class BackwardCase {
 public:
  explicit BackwardCase(const BackwardSizes& s = {}, DType dtype = DType::bf16)
      : sizes(s),
        q(HostTensor::random_normal(dtype, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim}, 1)),
        k(HostTensor::random_normal(dtype, {s.batch, s.seqlen_kv, s.num_heads_kv, s.head_dim}, 2)),
        v(HostTensor::random_normal(dtype, {s.batch, s.seqlen_kv, s.num_heads_kv, s.head_dim_v}, 3)),
        dout(HostTensor::random_normal(dtype, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim_v}, 4)) {}

  void values(std::optional<Tensor> AttentionOptions::*option, DType dtype, const Dims& shape,
              const std::function<double(std::int64_t)>& value) {
    options.*option = captured(dtype, shape, value);
    tensors_.emplace_back(option, &kept_.back());
  }
  // A tensor for the captures of a score.
  Tensor captured(DType dtype, const Dims& shape, const std::function<double(std::int64_t)>& value) {
    HostTensor& tensor = kept_.emplace_back(dtype, shape);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(tensor.element_count()); ++i)
      store_element(tensor.data(), dtype, i, value(i));
    return tensor.view();
  }
  Dims lse_shape() const {
    const Dims& rows = dout.shape();
    return rows.size() == 4 ? Dims{rows[0], rows[2], rows[1]} : Dims{rows[1], rows[0]};
  }
  // With cu_seqlens: tensors without batches.
  void pack_queries() {
    for (HostTensor* rows : {&q, &dout}) pack(*rows);
  }
  void pack_keys() {
    for (HostTensor* rows : {&k, &v}) pack(*rows);
  }

  void check(Engine& engine, bool in_f32 = false) { CHECK(what_is_wrong(engine, in_f32) == ""); }

  struct Made {
    HostTensor dq, dk, dv;
    std::vector<HostTensor> of_options;  // in the order of kOptionGradients, of those that are asked for
  };
  // Forward and backward on the engine's device.
  Made make(Engine& engine, bool in_f32 = false) const {
    const int device = engine.emulates() ? kHostMemory : -1;
    std::list<DeviceTensor> there;
    const auto move = [&](const HostTensor& tensor) {
      return there.emplace_back(tensor.to_device(nullptr, device)).view();
    };
    AttentionOptions of = options;
    for (const auto& [option, tensor] : tensors_) of.*option = move(*tensor);
    if (of.score)
      for (const Capture& capture : options.score->captures())
        if (const auto* tensor = std::get_if<Tensor>(&capture.value))
          of.score->set({capture.name, there.emplace_back(DeviceTensor::from_host(*tensor, nullptr, device)).view()});
    const Tensor on_q = move(q), on_k = move(k), on_v = move(v), on_dout = move(dout);
    const Tensor out = move(poisoned(q.dtype(), dout.shape())), lse = move(poisoned(DType::f32, lse_shape()));
    AttentionOptions forward = of;
    forward.lse = lse;
    engine.attention(on_q, on_k, on_v, out, forward);
    std::optional<Tensor> on_dlse;
    if (dlse) on_dlse = move(*dlse);
    const DType of_keys = in_f32 ? DType::f32 : k.dtype();
    const DeviceTensor dq = poisoned(q.dtype(), q.shape()).to_device(nullptr, device),
                       dk = poisoned(of_keys, k.shape()).to_device(nullptr, device),
                       dv = poisoned(of_keys, v.shape()).to_device(nullptr, device);
    GradientTensors into{dq.view(), dk.view(), dv.view()};
    std::list<DeviceTensor> option_gradients;
    for (const OptionGradient* row : asked_of_options()) {
      const Tensor& option = *(options.*row->option);
      const HostTensor none = poisoned(in_f32 ? DType::f32 : option.dtype, option.shape);
      into.*row->into = option_gradients.emplace_back(none.to_device(nullptr, device)).view();
    }
    engine.attention_backward(on_dout, on_q, on_k, on_v, out, lse, into, of, {on_dlse, variant, deterministic});
    Made made{HostTensor::from_device(dq), HostTensor::from_device(dk), HostTensor::from_device(dv), {}};
    for (const DeviceTensor& gradient : option_gradients) made.of_options.push_back(HostTensor::from_device(gradient));
    return made;
  }

  // By what the reference says of the same tensors. Empty: nothing.
  std::string what_is_wrong(Engine& engine, bool in_f32 = false) const {
    const Made made = make(engine, in_f32);
    std::optional<Tensor> here_dlse;
    if (dlse) here_dlse = dlse->view();
    const auto exact = engine.reference_backward(dout.view(), q.view(), k.view(), v.view(), options, here_dlse);
    const auto low =
        engine.reference_backward_in_low_precision(dout.view(), q.view(), k.view(), v.view(), options, here_dlse);
    std::string wrong = compare("dq", made.dq, exact.dq, low.dq) + compare("dk", made.dk, exact.dk, low.dk) +
                        compare("dv", made.dv, exact.dv, low.dv);
    auto got = made.of_options.begin();
    for (const OptionGradient* row : asked_of_options()) {
      const std::vector<double>& values = exact.*row->values;
      wrong += compare(row->name, *got++, values, lowered(engine, row->values, values, low));
    }
    return wrong;
  }

  BackwardSizes sizes;
  HostTensor q, k, v, dout;
  std::optional<HostTensor> dlse;
  std::optional<BackwardVariant> variant;
  bool deterministic = false;
  AttentionOptions options;
  bool of_options = false;  // whether options that are given get gradients, too

 private:
  struct OptionGradient {
    const char* name;
    std::optional<Tensor> AttentionOptions::*option;
    std::optional<Tensor> GradientTensors::*into;
    std::vector<double> reference::Gradients::*values;
  };
  static constexpr OptionGradient kOptionGradients[] = {
      {"dbias", &AttentionOptions::bias, &GradientTensors::dbias, &reference::Gradients::dbias},
      {"dslopes", &AttentionOptions::alibi_slopes, &GradientTensors::dslopes, &reference::Gradients::dslopes},
      {"dsinks", &AttentionOptions::sinks, &GradientTensors::dsinks, &reference::Gradients::dsinks}};
  std::vector<const OptionGradient*> asked_of_options() const {
    std::vector<const OptionGradient*> asked;
    for (const OptionGradient& row : kOptionGradients)
      if (of_options && options.*row.option) asked.push_back(&row);
    return asked;
  }

  // Of few numbers, each of which is a sum of what many roundings do, how far low precision leads them astray is a
  // matter of luck: what it does to several calls like this one at most.
  std::vector<double> lowered(Engine& engine, std::vector<double> reference::Gradients::*of,
                              const std::vector<double>& exact, const reference::Gradients& low) const {
    const auto distance = [of](const reference::Gradients& a, const reference::Gradients& b) {
      double largest = 0;
      for (std::size_t i = 0; i < (a.*of).size(); ++i) largest = std::max(largest, std::abs((a.*of)[i] - (b.*of)[i]));
      return largest;
    };
    double yardstick = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) yardstick = std::max(yardstick, std::abs(exact[i] - (low.*of)[i]));
    for (std::uint64_t seed = 60; seed < 66; ++seed) {
      const HostTensor other = HostTensor::random_normal(q.dtype(), dout.shape(), seed);
      yardstick = std::max(
          yardstick,
          distance(engine.reference_backward(other.view(), q.view(), k.view(), v.view(), options),
                   engine.reference_backward_in_low_precision(other.view(), q.view(), k.view(), v.view(), options)));
    }
    std::vector<double> made = exact;
    for (double& value : made) value += yardstick;
    return made;
  }

  static void pack(HostTensor& rows) {
    const Dims& shape = rows.shape();
    const std::vector<double> values = rows.to_doubles();
    rows =
        HostTensor::from_doubles(rows.dtype(), {shape[0] * shape[1], shape[2], shape[3]}, values.data(), values.size());
  }
  static HostTensor poisoned(DType dtype, const Dims& shape) {
    HostTensor tensor(dtype, shape);
    for (std::size_t i = 0; i < tensor.element_count(); ++i)
      store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
    return tensor;
  }
  static std::string compare(const std::string& name, const HostTensor& got, const std::vector<double>& exact,
                             const std::vector<double>& low) {
    const reference::Comparison comparison = reference::compare(got, exact, low);
    if (comparison.passed) return "";
    return name + " is off by " + std::to_string(comparison.max_error) + ", at most " +
           std::to_string(comparison.bound) + " may be; ";
  }

  std::list<HostTensor> kept_;
  std::vector<std::pair<std::optional<Tensor> AttentionOptions::*, const HostTensor*>> tensors_;
};

// Each changes scores or probabilities of a case with 70 queries and 100 keys of 4 heads in a batch of 2.
inline std::vector<std::function<void(BackwardCase&)>> changes_of_scores() {
  using O = AttentionOptions;
  using Case = BackwardCase;
  return {[](Case& c) { c.options.softcap = 2; },
          [](Case& c) { c.options.softmax_scale = -0.3f; },
          [](Case& c) { c.options.softmax_scale = 0.f; },
          [](Case& c) { c.values(&O::alibi_slopes, DType::f32, {4}, [](std::int64_t i) { return 0.1 * (i + 1); }); },
          [](Case& c) {
            c.options.causal = true, c.options.softcap = 5;
            c.values(&O::alibi_slopes, DType::f32, {2, 4}, [](std::int64_t i) { return 0.03 * i; });
          },
          [](Case& c) { c.values(&O::sinks, DType::f32, {4}, [](std::int64_t i) { return 2. - i; }); },
          [](Case& c) {
            c.values(&O::bias, DType::f32, {1, 4, 70, 100}, [](std::int64_t i) { return (i * 7 % 13) * .2; });
          },
          [](Case& c) {
            c.values(&O::bias, DType::bf16, {2, 1, 1, 100}, [](std::int64_t i) { return (i * 7 % 13) * .2; });
          },
          [](Case& c) {
            c.values(&O::boolean_mask, DType::boolean, {2, 1, 70, 100},
                     [](std::int64_t i) { return i / 100 != 3 && i % 5 != 2; });
          },
          [](Case& c) {
            c.values(&O::documents, DType::i32, {1, 100}, [](std::int64_t i) { return i / 30 % 2; });
          },
          [](Case& c) {
            c.values(&O::tree, DType::i64, {2, 70, 2}, [](std::int64_t i) { return 1 + i * 37 % 1000; });
          },
          [](Case& c) {
            c.options.dropout = {0.3, 99, 7};
          },
          [](Case& c) {
            c.options.dropout = {0.8, 99, 7}, c.options.causal = true;
          },
          [](Case& c) {
            c.options.dropout.probability = 0.25;
            c.values(&O::dropout_mask, DType::boolean, {2, 4, 70, 100}, [](std::int64_t i) { return i % 4 != 1; });
          },
          [](Case& c) { c.dlse = HostTensor::random_normal(DType::f32, c.lse_shape(), 8); },
          [](Case& c) {
            const Tensor slope = c.captured(DType::f32, {4}, [](std::int64_t i) { return 0.02 * i; });
            c.options.score = Score("score * sigmoid(score) - slope(head) * abs(query - key)", {{"slope", slope}});
          },
          [](Case& c) {
            c.options.causal = true, c.options.softcap = 5;
            c.options.score = Score("key % gap == 3 ? -infinity : cap * tanh(score / cap)", {{"cap", 2.0}, {"gap", 7}});
          }};
}

}  // namespace flashjit::tests
