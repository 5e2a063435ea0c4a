// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/backward_case.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "cli/verify/dice.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kFew = 200;  // rows or keys, all heads together
constexpr int kDraws = 2, kDrawsOfFew = 12;

int draws_of(const CaseShape& shape) {
  const std::int64_t rows = shape.seqlen_q * shape.heads_q, keys = shape.seqlen_kv * shape.heads_kv;
  return shape.batch * std::min(rows, keys) <= kFew ? kDrawsOfFew : kDraws;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// What output and LSE do to the number whose gradients are computed.
struct Upstream {
  HostTensor dout, dlse;
};
Upstream random_upstream(DType dtype, const Dims& out, const Dims& lse, bool has_dlse, std::uint64_t seed) {
  return {HostTensor::random_normal(dtype, out, seed, kOutlierRate),
          has_dlse ? HostTensor::random_normal(DType::f32, lse, seed + 1) : HostTensor(DType::f32, lse)};
}

// A row of a head, in the order of the LSE.
struct RowOfHead {
  std::size_t index;
  std::int64_t batch, head;
  std::size_t first;  // of its output, and of what is computed from that
};
template <class Visit>
void for_each_row(const reference::Result& forward, Visit visit) {
  const std::int64_t rows = forward.shape[1], heads = forward.shape[2], width = forward.shape[3];
  for (std::size_t i = 0; i < forward.lse.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i), row = at % rows, head = at / rows % heads,
                       batch = at / (rows * heads);
    visit(RowOfHead{i, batch, head, static_cast<std::size_t>(((batch * rows + row) * heads + head) * width)});
  }
}

constexpr double kRoundingOfF32 = 1.0 / (1 << 24);
constexpr double kRoundingOfSums = 4 * kRoundingOfF32;  // of some additions in f32

// That by the LSE comes out of a row's sum of dout and output, so what is wrong with the sum can be put there: that the
// output, which the kernel gets, was rounded to its dtype, and what additions do.
Upstream with_rounded_sums(const Upstream& upstream, const reference::Result& forward, const HostTensor& out) {
  Upstream rounded = upstream;
  const std::vector<double> dout = upstream.dout.to_doubles(), given = out.to_doubles();
  const auto width = static_cast<std::size_t>(forward.shape[3]);
  for_each_row(forward, [&](const RowOfHead& row) {
    double error = 0, magnitude = 0;
    for (std::size_t j = row.first; j < row.first + width; ++j) {
      error += dout[j] * (given[j] - forward.out[j]);
      magnitude += std::abs(dout[j] * forward.out[j]);
    }
    const auto at = static_cast<std::int64_t>(row.index);
    const double before = load_element(upstream.dlse.data(), DType::f32, at);
    error += (at % 2 == 0 ? -magnitude : magnitude) * kRoundingOfSums;
    store_element(rounded.dlse.data(), DType::f32, at, before - error);
  });
  return rounded;
}

// Tensor cores add 16 columns at a time to a score and cut off what is below its last bit, so that it loses one at most
// at each of these steps, always towards 0.
double steps_of_score(std::int64_t head_dim) { return static_cast<double>((head_dim + 15) / 16); }

// What exp(S - LSE) is of a score that alone makes this LSE and has lost all of these bits. The LSE is rounded, and
// again in binary logarithms. In the reference all that cancels, as it subtracts the largest score. And 16 bits, in
// which P is multiplied, have 1 but round what is near it by half a bit more. Half of this on average: all of it is
// what twice the yardstick allows.
double probability_of_cut_score(double lse, double scale, std::int64_t head_dim, DType dtype) {
  if (!std::isfinite(lse) || lse == 0 || scale == 0) return 1;
  const double bit = 2 * kRoundingOfF32 * std::exp2(std::floor(std::log2(std::abs(lse / scale))));
  const double lost = std::copysign(steps_of_score(head_dim) * bit * std::abs(scale), lse) + 2 * kRoundingOfF32 * lse;
  const double p = std::exp(-lost);
  const HostTensor stored = HostTensor::from_doubles(dtype, {1}, &p, 1);
  const double rounded = load_element(stored.data(), dtype, 0);
  return (1 + (std::abs(rounded - 1) > std::abs(p - 1) ? rounded : p)) / 2;
}

HostTensor in_f64(const HostTensor& tensor, const std::function<double(std::int64_t, double)>& change = {}) {
  std::vector<double> values = tensor.to_doubles();
  for (std::size_t i = 0; change && i < values.size(); ++i) values[i] = change(static_cast<std::int64_t>(i), values[i]);
  return HostTensor::from_doubles(DType::f64, tensor.shape(), values.data(), values.size());
}

// By how much the number changes, by way of each row, where the scores of each key have lost something between none and
// all of these bits: the root mean square of some draws.
std::vector<double> changes_by_cut_scores(Engine& engine, const CaseInputs& inputs, const AttentionOptions& options,
                                          const Upstream& upstream, const reference::Result& forward) {
  constexpr int kTries = 4, kParts = 1000;
  const Dims& shape = inputs.k.shape();
  const double half = steps_of_score(shape[3]) * kRoundingOfF32;
  const HostTensor q = in_f64(inputs.q), v = in_f64(inputs.v);
  const std::vector<double> dout = upstream.dout.to_doubles(), dlse = upstream.dlse.to_doubles();
  const auto width = static_cast<std::size_t>(forward.shape[3]);
  std::vector<double> changes(forward.lse.size());
  Dice dice(0);
  for (int i = 0; i < kTries; ++i) {
    std::vector<double> factors(static_cast<std::size_t>(shape[1]));
    for (double& factor : factors) factor = 1 + half * static_cast<double>(dice.from_to(-kParts, kParts)) / kParts;
    const HostTensor k = in_f64(inputs.k, [&](std::int64_t at, double value) {
      return value * factors[static_cast<std::size_t>(at / (shape[2] * shape[3]) % shape[1])];
    });
    const reference::Result cut = engine.reference(q.view(), k.view(), v.view(), options);
    for_each_row(forward, [&](const RowOfHead& row) {
      double change = dlse[row.index] * (cut.lse[row.index] - forward.lse[row.index]);
      for (std::size_t j = row.first; j < row.first + width; ++j) change += dout[j] * (cut.out[j] - forward.out[j]);
      if (std::isfinite(change)) changes[row.index] += change * change / kTries;
    });
  }
  for (double& change : changes) change = std::sqrt(change);
  return changes;
}

// What is wrong with all probabilities of a row alike is as if the number depended more or less on the row. And where
// scores have lost bits of their own, dS does not add up to the gradient of the LSE any more, which counts where keys
// have a large value in common; but to what the number changes by with such scores, as dS are its derivatives.
Upstream with_cut_scores(const Upstream& upstream, const reference::Result& forward, const std::vector<double>& changes,
                         const HostTensor& q, const AttentionOptions& options) {
  const std::int64_t head_dim = q.shape()[3];
  const double scale = options.softmax_scale ? *options.softmax_scale : 1 / std::sqrt(static_cast<double>(head_dim));
  std::vector<double> dout = upstream.dout.to_doubles(), dlse = upstream.dlse.to_doubles();
  const auto width = static_cast<std::size_t>(forward.shape[3]);
  for_each_row(forward, [&](const RowOfHead& row) {
    const double p = probability_of_cut_score(forward.lse[row.index], scale, head_dim, q.dtype());
    for (std::size_t j = row.first; j < row.first + width; ++j) dout[j] *= p;
    dlse[row.index] = dlse[row.index] * p + (row.index % 2 == 0 ? 1 : -1) * changes[row.index];
  });
  return {HostTensor::from_doubles(DType::f64, upstream.dout.shape(), dout.data(), dout.size()),
          HostTensor::from_doubles(DType::f64, upstream.dlse.shape(), dlse.data(), dlse.size())};
}

// The gradient of a sink is a sum over rows of P D, whose terms cancel. What additions in f32 do to it is of their
// magnitudes; of so few numbers luck decides whether low precision shows it.
double distance_of_sinks(const Upstream& upstream, const reference::Result& forward, const Tensor& sinks) {
  const std::vector<double> dout = upstream.dout.to_doubles(), dlse = upstream.dlse.to_doubles();
  const auto width = static_cast<std::size_t>(forward.shape[3]);
  const bool of_batch = sinks.shape.size() > 1;
  std::map<std::int64_t, double> magnitudes;  // by place
  for_each_row(forward, [&](const RowOfHead& row) {
    const double lse = forward.lse[row.index];
    if (!std::isfinite(lse)) return;
    double sum = -dlse[row.index];
    for (std::size_t j = row.first; j < row.first + width; ++j) sum += dout[j] * forward.out[j];
    const std::int64_t place = (of_batch ? row.batch * sinks.strides[0] : 0) + row.head * sinks.strides[of_batch];
    magnitudes[place] += std::abs(std::exp(load_element(sinks.data, sinks.dtype, place) - lse) * sum);
  });
  double largest = 0;
  for (const auto& [place, magnitude] : magnitudes) largest = std::max(largest, magnitude);
  return largest * kRoundingOfSums;
}

struct GradientRow {
  const char* name;
  std::optional<Tensor> GradientTensors::*tensor;
  std::vector<double> reference::Gradients::*values;
  std::optional<Tensor> AttentionOptions::*option;  // null: it is of q, k or v
  bool any_order;                                   // see CaseOutput
};
using T = GradientTensors;
using R = reference::Gradients;
using O = AttentionOptions;
constexpr GradientRow kGradients[] = {{"dq", &T::dq, &R::dq, nullptr, true},
                                      {"dk", &T::dk, &R::dk, nullptr, false},
                                      {"dv", &T::dv, &R::dv, nullptr, false},
                                      {"dbias", &T::dbias, &R::dbias, &O::bias, true},
                                      {"dslopes", &T::dslopes, &R::dslopes, &O::alibi_slopes, false},
                                      {"dsinks", &T::dsinks, &R::dsinks, &O::sinks, false}};

// Gradients of a call in double precision, and how far others may be from them.
class GradientReferences {
 public:
  GradientReferences(Engine& engine, const CaseInputs& inputs, const AttentionOptions& options)
      : engine_(engine), q_(inputs.q.view()), k_(inputs.k.view()), v_(inputs.v.view()), options_(options) {}

  reference::Gradients exact(const Upstream& upstream) const {
    return engine_.reference_backward(upstream.dout.view(), q_, k_, v_, options_, upstream.dlse.view());
  }
  reference::Gradients low(const Upstream& upstream) const {
    return engine_.reference_backward_in_low_precision(upstream.dout.view(), q_, k_, v_, options_,
                                                       upstream.dlse.view());
  }
  void measure(const reference::Gradients& one, const reference::Gradients& other) {
    for (std::size_t i = 0; i < std::size(kGradients); ++i)
      yardsticks[i] = std::max(yardsticks[i], distance(one.*kGradients[i].values, other.*kGradients[i].values));
  }

  void measure(std::vector<double> reference::Gradients::*values, double distance) {
    for (std::size_t i = 0; i < std::size(kGradients); ++i)
      if (kGradients[i].values == values) yardsticks[i] = std::max(yardsticks[i], distance);
  }

  double yardsticks[std::size(kGradients)] = {};  // in the order of the rows

 private:
  Engine& engine_;
  const Tensor q_, k_, v_;
  const AttentionOptions& options_;
};

}  // namespace

std::string to_string(const GradientChoices& choices) {
  std::string text = choices.deterministic ? "deterministic gradients of" : "gradients of";
  for (const auto& [name, is_wanted] :
       {std::pair{" q", choices.dq}, {" k", choices.dk}, {" v", choices.dv}, {" options", choices.of_options}})
    if (is_wanted) text += name;
  if (choices.in_f32) text += " in f32";
  if (choices.has_dlse) text += ", with dlse";
  if (choices.variant) text += ", by " + flashjit::to_string(*choices.variant);
  return text;
}

BackwardCase::BackwardCase(Engine& engine, const CaseShape& shape, const CaseInputs& inputs, const Texts& texts,
                           int device, const GradientChoices& choices, std::uint64_t seed)
    : layout_{shape.heads_first}, device_(device) {
  const AttentionOptions on_host = texts.on_host(with_tensors(inputs.options, inputs.tensors));
  const reference::Result forward = engine.reference(inputs.q.view(), inputs.k.view(), inputs.v.view(), on_host);
  const DType dtype = inputs.q.dtype(), of_keys = choices.in_f32 ? DType::f32 : dtype;
  const Dims lse_shape{shape.batch, shape.heads_q, shape.seqlen_q};
  const auto upstream_of = [&](std::uint64_t draw) {
    return random_upstream(dtype, forward.shape, lse_shape, choices.has_dlse, seed + 3 + 2 * draw);
  };
  const Upstream upstream = upstream_of(0);
  GradientReferences references(engine, inputs, on_host);
  const reference::Gradients exact = references.exact(upstream);
  references.measure(exact, references.low(upstream));
  const HostTensor out = HostTensor::from_doubles(dtype, forward.shape, forward.out.data(), forward.out.size());
  references.measure(exact, references.exact(with_rounded_sums(upstream, forward, out)));
  const std::vector<double> changes = changes_by_cut_scores(engine, inputs, on_host, upstream, forward);
  references.measure(exact, references.exact(with_cut_scores(upstream, forward, changes, inputs.q, on_host)));
  if (on_host.sinks) references.measure(&R::dsinks, distance_of_sinks(upstream, forward, *on_host.sinks));
  for (int draw = 1; draw < draws_of(shape); ++draw) {
    const Upstream other = upstream_of(static_cast<std::uint64_t>(draw));
    references.measure(references.exact(other), references.low(other));
  }
  const HostTensor* const of[] = {&inputs.q, &inputs.k, &inputs.v};
  const bool is_wanted[] = {choices.dq, choices.dk, choices.dv};
  for (std::size_t i = 0; i < std::size(kGradients); ++i) {
    const GradientRow& row = kGradients[i];
    const std::optional<Tensor> option = row.option ? on_host.*row.option : std::nullopt;
    if (row.option ? !option || !choices.of_options : !is_wanted[i]) continue;
    if (row.tensor == &T::dbias && choices.deterministic) continue;  // which of most biases is refused
    const CaseLayout layout = row.option ? CaseLayout{} : layout_;
    const DType of_gradient = row.tensor == &T::dq ? dtype
                              : !row.option        ? of_keys
                              : choices.in_f32     ? DType::f32
                                                   : option->dtype;
    HostTensor poisoned = layout.in_memory(filled_with_nan(of_gradient, option ? option->shape : of[i]->shape()));
    gradients_.push_back({row.name, row.tensor, exact.*row.values, references.yardsticks[i], std::move(poisoned),
                          layout, row.any_order && !choices.deterministic});
  }
  call_.q = move_rows(inputs.q), call_.k = move_rows(inputs.k), call_.v = move_rows(inputs.v);
  call_.dout = move_rows(upstream.dout);
  call_.out = move_rows(out);
  call_.lse = move(HostTensor::from_doubles(DType::f32, lse_shape, forward.lse.data(), forward.lse.size()));
  if (choices.has_dlse) call_.dlse = move(upstream.dlse);
  call_.deterministic = choices.deterministic, call_.variant = choices.variant;
  call_.options = with_tensors(inputs.options, inputs.tensors, device, tensors_);
  call_.options = texts.on_device(call_.options, device, tensors_);
}

Tensor BackwardCase::move(const HostTensor& tensor) {
  return tensors_.emplace_back(tensor.to_device(nullptr, device_)).view();
}

Tensor BackwardCase::move_rows(const HostTensor& tensor) {
  return layout_.view(tensors_.emplace_back(layout_.in_memory(tensor).to_device(nullptr, device_)));
}

CaseOutputs BackwardCase::run(const std::function<void(const BackwardCaseCall&)>& attention_backward) const {
  std::vector<DeviceTensor> memory;
  BackwardCaseCall call = call_;
  for (const Gradient& gradient : gradients_) {
    memory.push_back(gradient.poisoned.to_device(nullptr, device_));
    call.into.*gradient.tensor = gradient.layout.view(memory.back());
  }
  attention_backward(call);
  CaseOutputs outputs;
  for (std::size_t i = 0; i < gradients_.size(); ++i)
    outputs.push_back({gradients_[i].name, gradients_[i].layout.in_memory(HostTensor::from_device(memory[i])),
                       gradients_[i].any_order});
  return outputs;
}

CaseOutputs BackwardCase::run(Engine& engine, const std::optional<Variant>& /*variant*/) const {
  return run([&](const BackwardCaseCall& call) {
    engine.attention_backward(call.dout, call.q, call.k, call.v, call.out, call.lse, call.into, call.options,
                              {call.dlse, call.variant, call.deterministic});
  });
}

CaseOutputs BackwardCase::emulate(Engine& engine, const std::optional<Variant>& /*variant*/,
                                  const EmulationOptions& options, emulator::Report& report) const {
  return run([&](const BackwardCaseCall& call) {
    report = engine.emulate_backward(call.dout, call.q, call.k, call.v, call.out, call.lse, call.into, call.options,
                                     {call.dlse, call.variant, call.deterministic}, options);
  });
}

std::string BackwardCase::problem_with(CaseOutputs outputs) const {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const Gradient& gradient = gradients_[i];
    std::vector<double> low = gradient.exact;
    for (double& value : low) value += gradient.yardstick;
    const reference::Comparison comparison = reference::compare(outputs[i].values, gradient.exact, low);
    const std::string what = cli::problem_with(gradient.name, comparison);
    if (!what.empty()) return what;
  }
  return "";
}

}  // namespace flashjit::cli
