// SPDX-License-Identifier: Apache-2.0
// Gradients of attention. With P the probabilities, M what dropout makes of them (0 or 1 / share) and O = (P M) V:
//   dV = (P M)^T dO     dP = M (dO V^T)     dS = P (dP - D), D the row sums of dO O, less the LSE's gradient
// and from dS by what the options make of scores to products, slopes and bias; a sink is a score whose dP is 0.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "flashjit/reference.h"
#include "generator/dtype.h"
#include "runtime/call/ragged.h"
#include "runtime/reference/check_call.h"
#include "runtime/reference/head_view.h"
#include "runtime/reference/reference_scores.h"
#include "runtime/reference/reference_tensors.h"
#include "runtime/reference/result_shapes.h"
#include "runtime/reference/row_scores.h"
#include "runtime/reference/sequences.h"
#include "runtime/support/byte_count.h"
#include "runtime/support/parallel.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using namespace runtime;

std::size_t element_count(const Dims& shape) { return byte_count("shape", DType::f32, shape) / size_of(DType::f32); }

std::vector<double> zeros(const std::optional<Tensor>& like) {
  return std::vector<double>(like ? element_count(like->shape) : 0);
}

// Packed gradients of a tensor of rows, head by head.
class RowGradients {
 public:
  RowGradients(std::vector<double>& all, const Tensor& of) : all_(all), shape_(of.shape) {}

  double* at(const SequenceRows& rows, std::int64_t row, std::int64_t head) const {
    const bool in_rows = rows.pages.empty();
    const std::int64_t batch = in_rows ? rows.batch : rows.pages[static_cast<std::size_t>(row / rows.page_size)];
    const std::int64_t of_batch = in_rows ? rows.first + row : row % rows.page_size;
    const std::int64_t place = ((batch * shape_[seqlen_dim] + of_batch) * shape_[heads_dim] + head);
    return &all_[static_cast<std::size_t>(place * shape_[head_dim_dim])];
  }

 private:
  std::vector<double>& all_;
  const Dims shape_;
};

// Where the gradient of a packed tensor of options belongs, in which one may stand for all of a dimension.
template <std::size_t kDims>
std::size_t packed_place(const Dims& shape, const std::int64_t (&indices)[kDims]) noexcept {
  std::int64_t place = 0;
  for (int i = 0; i < shape.size(); ++i)
    place = place * shape[i] + (shape[i] > 1 ? indices[static_cast<std::size_t>(i)] : 0);
  return static_cast<std::size_t>(place);
}

std::size_t place_of_head(const Dims& shape, std::int64_t batch, std::int64_t head) noexcept {
  return shape.size() == 1 ? packed_place(shape, {head}) : packed_place(shape, {batch, head});
}

// Tensors with the dimension of batches; the LSE of the options is its gradient.
struct Inputs {
  const Tensor &dout, &q, &k, &v;
  const AttentionOptions& opts;
};

// What one head adds to the gradients of options; that of a bias in the rows and keys of the sequence, 1 where one
// stands for all.
struct OptionSums {
  double slope = 0, sink = 0;
  std::vector<double> bias;
};

// A query head of a sequence. With Real = float probabilities, dS and results are rounded to the dtype.
template <typename Real>
class BackwardHead {
 public:
  BackwardHead(const Inputs& inputs, std::int64_t sequence, const SequencePlace& place, std::int64_t head,
               std::int64_t head_kv, const ScoreHooks& hooks)
      : inputs_(inputs),
        sequence_(sequence),
        place_(place),
        head_(head),
        q_{inputs.q, place.queries, head},
        dout_{inputs.dout, place.queries, head},
        scores_(sequence, q_, {inputs.k, place.keys, head_kv}, nullptr, inputs.opts, hooks),
        keys_(unpack<Real>({inputs.k, place.keys, head_kv}, false)),
        values_(unpack<Real>({inputs.v, place.keys, head_kv}, false)),
        dk_(keys_.size()),
        dv_(values_.size()),
        ds_(static_cast<std::size_t>(place.keys.count)),
        p_(static_cast<std::size_t>(place.keys.count)) {
    if (!inputs.opts.bias) return;
    const Dims& shape = inputs.opts.bias->shape;
    const auto of_sequence = [](std::int64_t all, std::int64_t count) { return all > 1 ? count : all; };
    bias_ = {of_sequence(shape[2], place.queries.count), of_sequence(shape[3], place.keys.count)};
    options_.bias.resize(element_count(bias_));
  }

  // Gradients of queries go where they belong, which no other head has.
  void run(std::vector<double>& dq) {
    const std::int64_t rows = place_.queries.count;
    for (std::int64_t first = 0; first < rows; first += kRowsOfTask) {
      const std::int64_t end = std::min(rows, first + kRowsOfTask);
      scores_.ask_hook(first, end - first);
      for (std::int64_t row = first; row < end; ++row) add_row(row, dq);
    }
  }

  // What other heads add to as well.
  void add_to(Gradients& sums, std::int64_t head_kv) const {
    add_rows(RowGradients(sums.dk, inputs_.k), head_kv, dk_, width(), scores_.scale());
    add_rows(RowGradients(sums.dv, inputs_.v), head_kv, dv_, width_v(), Real{1});
    const AttentionOptions& opts = inputs_.opts;
    if (opts.alibi_slopes) sums.dslopes[place_of_head(opts.alibi_slopes->shape, sequence_, head_)] += options_.slope;
    if (opts.sinks) sums.dsinks[place_of_head(opts.sinks->shape, sequence_, head_)] += options_.sink;
    if (!opts.bias) return;
    for (std::int64_t row = 0; row < bias_[0]; ++row)
      for (std::int64_t key = 0; key < bias_[1]; ++key)
        sums.dbias[packed_place(opts.bias->shape, {sequence_, head_, row, key})] +=
            options_.bias[packed_place(bias_, {row, key})];
  }

 private:
  std::int64_t width() const { return q_.width(); }
  std::int64_t width_v() const { return dout_.width(); }

  void add_row(std::int64_t row, std::vector<double>& all_dq) {
    const KeyRange keys = scores_.of_row(row);
    const Real lse_gradient = gradient_of_lse(row);
    if (keys.empty()) return add_sink(lse_gradient);  // whose probability is 1, of an output of 0
    read_row(row);
    Real total = std::exp(scores_.sink() - scores_.max());
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      p_[key] = scores_.hides(key) ? Real{0} : std::exp(scores_[key] - scores_.max());
      total += p_[key];
    }
    const Real row_sum = take_probabilities(keys, total) - lse_gradient;
    for (std::int64_t key = keys.begin; key < keys.end; ++key) ds_[key] = p_[key] * (ds_[key] - row_sum);
    add_sink(std::exp(scores_.sink() - scores_.max()) / total * -row_sum);
    add_options(row, keys);
    add_products(row, keys, all_dq);
  }

  // Probabilities and their gradients, which ds_ has then; dV on the way. The row's sum of both, by way of its output.
  Real take_probabilities(const KeyRange& keys, Real total) {
    std::vector<Real> out(static_cast<std::size_t>(width_v()));
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      p_[key] /= total;
      ds_[key] = 0;
      if (p_[key] == 0 || !scores_.keeps(key)) continue;
      const Real* const value = &values_[key * width_v()];
      for (std::int64_t i = 0; i < width_v(); ++i) ds_[key] += of_out_[i] * value[i];
      ds_[key] /= scores_.kept_share();
      const Real kept = rounded(p_[key] / scores_.kept_share());
      add_multiple(kept, value, out.data(), width_v());
      add_multiple(kept, of_out_.data(), &dv_[key * width_v()], width_v());
    }
    Real row_sum = 0;
    for (std::int64_t i = 0; i < width_v(); ++i) row_sum += of_out_[i] * rounded(out[i]);
    return row_sum;
  }

  void read_row(std::int64_t row) {
    of_out_.resize(static_cast<std::size_t>(width_v()));
    for (std::int64_t i = 0; i < width_v(); ++i) of_out_[i] = static_cast<Real>(dout_.at(row, i));
    query_.resize(static_cast<std::size_t>(width()));
    for (std::int64_t i = 0; i < width(); ++i) query_[i] = static_cast<Real>(q_.at(row, i));
  }

  Real gradient_of_lse(std::int64_t row) const {
    if (!inputs_.opts.lse) return 0;
    const Tensor& dlse = *inputs_.opts.lse;
    return static_cast<Real>(load_element(dlse.data, dlse.dtype,
                                          place_.queries.batch * dlse.strides[0] + head_ * dlse.strides[1] +
                                              (place_.queries.first + row) * dlse.strides[2]));
  }

  void add_sink(Real gradient) {
    if (inputs_.opts.sinks) options_.sink += gradient;
  }

  // What is added to scores behind the cap.
  void add_options(std::int64_t row, const KeyRange& keys) {
    const AttentionOptions& opts = inputs_.opts;
    if (!opts.alibi_slopes && !opts.bias) return;
    const std::int64_t position = row + place_.keys.count - place_.queries.count;
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      if (ds_[key] == 0) continue;
      const Real before = ds_[key] * scores_.by_function(key);  // of what the function gets
      if (opts.alibi_slopes) options_.slope -= before * static_cast<Real>(std::abs(position - key));
      if (opts.bias) options_.bias[packed_place(bias_, {row, key})] += before;
    }
  }

  void add_products(std::int64_t row, const KeyRange& keys, std::vector<double>& all_dq) {
    std::vector<Real> dq(static_cast<std::size_t>(width()));
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      if (ds_[key] == 0) continue;
      const Real of_product = rounded(ds_[key] * scores_.by_product(key));
      add_multiple(of_product, &keys_[key * width()], dq.data(), width());
      add_multiple(of_product, query_.data(), &dk_[key * width()], width());
    }
    double* const to = RowGradients(all_dq, inputs_.q).at(place_.queries, row, head_);
    for (std::int64_t i = 0; i < width(); ++i) to[i] = rounded(dq[i] * scores_.scale());
  }

  void add_rows(const RowGradients& to, std::int64_t head_kv, const std::vector<Real>& values, std::int64_t columns,
                Real scale) const {
    for (std::int64_t row = 0; row < place_.keys.count; ++row) {
      double* const sum = to.at(place_.keys, row, head_kv);
      for (std::int64_t i = 0; i < columns; ++i) sum[i] += values[row * columns + i] * scale;
    }
  }

  Real rounded(Real value) const {
    if constexpr (std::is_same_v<Real, double>) return value;
    return static_cast<Real>(round_to(inputs_.q.dtype, value));
  }

  const Inputs& inputs_;
  std::int64_t sequence_;
  const SequencePlace& place_;
  std::int64_t head_;
  HeadView q_, dout_;
  RowScores<Real> scores_;
  std::vector<Real> keys_, values_, dk_, dv_;  // packed rows
  std::vector<Real> ds_, p_;                   // of one row
  std::vector<Real> query_, of_out_;
  Dims bias_;
  OptionSums options_;
};

void check_backward(const Inputs& inputs) {
  check_inputs(inputs.q, inputs.k, inputs.v, inputs.opts);
  if (generator::is_of_8_bits(inputs.k.dtype))
    reject("k: must not be {}, which has no gradient", to_string(inputs.k.dtype));
  if (inputs.opts.k_rotary) reject("k_rotary: must not be given, it has no gradient");
  const Dims out{inputs.q.shape[batch_dim], inputs.q.shape[seqlen_dim], inputs.q.shape[heads_dim],
                 inputs.v.shape[head_dim_dim]};
  if (inputs.dout.shape != out || inputs.dout.strides.size() != out.size())
    reject("dout: must have the shape {} of the output, had {}", to_string(out), to_string(inputs.dout.shape));
  if (inputs.dout.dtype > DType::f32 && inputs.dout.dtype != DType::f64)
    reject("dout: dtype must be f16, bf16, f32 or f64, was {}", to_string(inputs.dout.dtype));
  const std::optional<Tensor>& dlse = inputs.opts.lse;
  if (dlse && (dlse->shape != lse_shape(out) || (dlse->dtype != DType::f32 && dlse->dtype != DType::f64)))
    reject("dlse: must be f32 or f64 {}, was {} {}", to_string(lse_shape(out)), to_string(dlse->dtype),
           to_string(dlse->shape));
  for (const auto& [name, tensor] :
       {std::pair{"dout", &inputs.dout}, {"dlse", inputs.opts.lse ? &*inputs.opts.lse : nullptr}})
    if (tensor && byte_count(name, tensor->dtype, tensor->shape) > 0 && !tensor->data)
      reject("{}: must point to host memory, was null", name);
}

Gradients make_gradients(const Inputs& inputs) {
  Gradients made;
  made.dq.resize(element_count(inputs.q.shape));
  made.dk.resize(element_count(inputs.k.shape));
  made.dv.resize(element_count(inputs.v.shape));
  made.dslopes = zeros(inputs.opts.alibi_slopes);
  made.dsinks = zeros(inputs.opts.sinks);
  made.dbias = zeros(inputs.opts.bias);
  return made;
}

template <typename Real>
Gradients compute_with_batch(const Inputs& inputs, const ScoreHooks& hooks) {
  check_backward(inputs);
  Gradients gradients = make_gradients(inputs);
  const std::vector<SequencePlace> sequences = sequences_of(inputs.q, inputs.k, inputs.opts);
  const std::int64_t heads = inputs.q.shape[heads_dim];
  Turns turns;
  parallel_for(sequences.size() * static_cast<std::size_t>(heads), [&](std::size_t i) {
    const auto sequence = static_cast<std::int64_t>(i) / heads, head = static_cast<std::int64_t>(i) % heads;
    const SequencePlace& place = sequences[static_cast<std::size_t>(sequence)];
    const std::int64_t head_kv = head / (heads / inputs.k.shape[heads_dim]);
    Turns::Turn turn(turns, i);
    BackwardHead<Real> worker(inputs, sequence, place, head, head_kv, hooks);
    worker.run(gradients.dq);
    turn.wait();
    worker.add_to(gradients, head_kv);
  });
  if constexpr (std::is_same_v<Real, float>)
    for (std::vector<double>* of_keys : {&gradients.dk, &gradients.dv})
      for (double& value : *of_keys) value = round_to(inputs.q.dtype, value);
  return gradients;
}

template <typename Real>
Gradients compute(const GivenBackward& given, const ScoreHooks& hooks) {
  AttentionOptions opts = given.opts;
  opts.lse = given.dlse;
  if (!is_ragged(opts)) return compute_with_batch<Real>({given.dout, given.q, given.k, given.v, opts}, hooks);
  const CallWithBatch with(given.q, given.k, given.v, given.dout, opts);
  return compute_with_batch<Real>({with.out, with.q, with.k, with.v, with.opts}, hooks);
}

}  // namespace

Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionOptions& opts, const std::optional<Tensor>& dlse) {
  check_functions(opts);
  return attention_backward({dout, q, k, v, opts, dlse}, nullptr);
}

Gradients attention_backward_in_low_precision(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                              const AttentionOptions& opts, const std::optional<Tensor>& dlse) {
  check_functions(opts);
  return attention_backward_in_low_precision({dout, q, k, v, opts, dlse}, nullptr);
}

Gradients attention_backward(const GivenBackward& call, const ScoreHook& hook) {
  return compute<double>(call, {hook, true});
}

Gradients attention_backward_in_low_precision(const GivenBackward& call, const ScoreHook& hook) {
  return compute<float>(call, {hook, true});
}

}  // namespace flashjit::reference
