// SPDX-License-Identifier: Apache-2.0
#include "flashjit/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "generator/dtype.h"
#include "runtime/call/dropout.h"
#include "runtime/call/masks.h"
#include "runtime/call/ragged.h"
#include "runtime/call/scales.h"
#include "runtime/call/scores.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/reference_scores.h"
#include "runtime/reference/reference_tensors.h"
#include "runtime/reference/sequences.h"
#include "runtime/support/byte_count.h"
#include "runtime/support/parallel.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using namespace runtime;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kFarthest = std::int64_t{1} << 40;  // keys of a window; beyond any length
constexpr std::int64_t kRowsPerTask = 128;  // enough to pay for unpacking the keys and values of a head, and for a hook

void check_view(const char* name, const Tensor& tensor) {
  if (tensor.shape.size() != kRank) {
    reject("{}: rank must be {}, was {} with shape {}", name, kRank, tensor.shape.size(), to_string(tensor.shape));
  }
  if (tensor.strides.size() != kRank) {
    reject("{}: must have {} strides like its shape, had {}", name, kRank, tensor.strides.size());
  }
  const std::size_t bytes = byte_count(name, tensor.dtype, tensor.shape);
  if (tensor.shape[head_dim_dim] == 0) reject("{}: head_dim must be at least 1, was 0", name);
  if (bytes > 0 && !tensor.data) reject("{}: must point to host memory, was null", name);
}

void check_like(const char* name, const Tensor& tensor, Dim dim, const char* other_name, const Tensor& other) {
  if (tensor.shape[dim] == other.shape[dim]) return;
  reject("{}: {} must be {} like that of {}, was {}", name, kDimNames[dim], other.shape[dim], other_name,
         tensor.shape[dim]);
}

void check_dtype(const char* name, const Tensor& tensor, const char* other_name, const Tensor& other) {
  if (tensor.dtype == other.dtype) return;
  reject("{}: dtype must be {} like that of {}, was {}", name, to_string(other.dtype), other_name,
         to_string(tensor.dtype));
}

void check_of_heads(const char* name, const std::optional<Tensor>& given, const Tensor& q, std::int64_t batch) {
  if (!given) return;
  const Tensor& values = *given;
  const int rank = values.shape.size();
  const Dims wanted = rank == 1 ? Dims{q.shape[heads_dim]} : Dims{batch, q.shape[heads_dim]};
  if (values.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(values.dtype));
  if (values.shape != wanted || values.strides.size() != rank)
    reject("{}: must be [{}] or [{}, {}], the heads of q and its batch, had shape {} and strides {}", name,
           q.shape[heads_dim], batch, q.shape[heads_dim], to_string(values.shape), to_string(values.strides));
  if (byte_count(name, values.dtype, values.shape) > 0 && !values.data)
    reject("{}: must point to host memory, was null", name);
}

void check_functions(const AttentionOptions& opts) {
  for (const char* name : {opts.score ? "score" : nullptr, opts.mask ? "mask" : nullptr})
    if (name)
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: must not be given to reference::attention, which has no compiler; "
                              "Engine::reference takes it",
                              name));
  for (const char* name : {opts.query_offsets ? "query_offsets" : nullptr, opts.key_offsets ? "key_offsets" : nullptr})
    if (name) reject("{}: must not be given without score or mask, which see them", name);
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_view("q", q);
  check_view("k", k);
  check_view("v", v);
  if (q.dtype > DType::f32) reject("q: dtype must be f16, bf16 or f32, was {}", to_string(q.dtype));
  if (k.dtype != DType::e4m3) check_dtype("k", k, "q", q);
  check_dtype("v", v, k.dtype == DType::e4m3 ? "k" : "q", k.dtype == DType::e4m3 ? k : q);
  check_scales({opts.k_scale, opts.v_scale}, "k", k);
  if (!is_ragged(opts)) check_like("k", k, batch_dim, "q", q);
  check_like("k", k, head_dim_dim, "q", q);
  if (is_ragged(opts))
    check_like("v", v, batch_dim, "k", k);
  else
    check_like("v", v, batch_dim, "q", q);
  check_like("v", v, seqlen_dim, "k", k);
  check_like("v", v, heads_dim, "k", k);
  const std::int64_t heads_q = q.shape[heads_dim], heads_kv = k.shape[heads_dim];
  if (heads_q > 0 && (heads_kv == 0 || heads_q % heads_kv != 0)) {
    reject("k: num_heads must divide the {} of q, was {}", heads_q, heads_kv);
  }
  if (opts.softmax_scale && !std::isfinite(*opts.softmax_scale)) {
    reject("softmax_scale: must be finite, was {}", *opts.softmax_scale);
  }
  // These refuse what no call may have.
  masks_of(opts);
  softmax_scale_of(opts, q.shape[head_dim_dim]);
  const SequenceBounds bounds = sequence_bounds(q, k, opts);
  check_of_heads("alibi_slopes", opts.alibi_slopes, q, bounds.batch);
  check_of_heads("sinks", opts.sinks, q, bounds.batch);
  check_tensors_of_scores(opts, bounds, q.shape[heads_dim]);
}

// One head of one sequence.
struct HeadView {
  const Tensor& tensor;
  SequenceRows of;
  std::int64_t head;
  Tensor scale = {};  // what rows are multiplied by, as in_one_form makes it; without data: nothing

  std::int64_t rows() const { return of.count; }
  std::int64_t width() const { return tensor.shape[head_dim_dim]; }
  double at(std::int64_t row, std::int64_t column) const {
    return load_element(tensor.data, tensor.dtype, place(tensor, row) + column * tensor.strides[head_dim_dim]);
  }
  double scale_of(std::int64_t row) const {
    return scale.data ? load_element(scale.data, scale.dtype, place(scale, row)) : 1;
  }

 private:
  std::int64_t place(const Tensor& in, std::int64_t row) const {
    const Dims& strides = in.strides;
    const std::int64_t first = of.pages.empty()
                                   ? of.batch * strides[batch_dim] + (of.first + row) * strides[seqlen_dim]
                                   : of.pages[static_cast<std::size_t>(row / of.page_size)] * strides[batch_dim] +
                                         row % of.page_size * strides[seqlen_dim];
    return first + head * strides[heads_dim];
  }
};

// [rows, width], or [width, rows] when transposed.
template <typename Real>
std::vector<Real> unpack(const HeadView& view, bool transposed) {
  const std::int64_t rows = view.rows(), width = view.width();
  std::vector<Real> values(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    const double scale = view.scale_of(row);
    for (std::int64_t column = 0; column < width; ++column) {
      values[transposed ? column * rows + row : row * width + column] = static_cast<Real>(view.at(row, column) * scale);
    }
  }
  return values;
}

// sum += factor * values, element by element: what the compiler makes vector instructions of.
template <typename Real>
void add_multiple(Real factor, const Real* values, Real* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * values[i];
}

double round_to(DType dtype, double value) noexcept {
  store_element(&value, dtype, 0, value);
  return load_element(&value, dtype, 0);
}

// One of f32 [num_heads] or [batch, num_heads].
double value_of_head(const std::optional<Tensor>& values, std::int64_t batch, std::int64_t head, double none) {
  if (!values) return none;
  const int rank = values->shape.size();
  const std::int64_t of_batch = rank > 1 ? batch * values->strides[0] : 0;
  return load_element(values->data, values->dtype, of_batch + head * values->strides[rank - 1]);
}

// As the instruction of the kernels gives it, which is exact to 2^-11: 11 binary digits.
float low_precision_tanh(float x) {
  int exponent = 0;
  const float digits = std::frexp(std::tanh(x), &exponent);
  return std::ldexp(std::nearbyint(digits * 2048), exponent - 11);
}

// Real = double is the oracle. Real = float is the yardstick, with probabilities and results rounded to the dtype.
template <typename Real>
class Head {
 public:
  // batch: the sequence; hook: empty for none.
  Head(std::int64_t batch, const HeadView& q, const HeadView& k, const HeadView& v, const AttentionOptions& opts,
       const ScoreHook& hook)
      : batch_(batch),
        q_(q),
        opts_(opts),
        hook_(hook),
        keys_(unpack<Real>(k, true)),
        values_(unpack<Real>(v, false)),
        seqlen_kv_(k.rows()),
        head_dim_v_(v.width()),
        scale_(static_cast<Real>(opts.softmax_scale ? *opts.softmax_scale : 1 / std::sqrt(1.0 * q.width()))),
        softcap_(opts.softcap),
        slope_(static_cast<Real>(value_of_head(opts.alibi_slopes, batch, q.head, 0))),
        sink_(static_cast<Real>(value_of_head(opts.sinks, batch, q.head, -kInfinity))),
        dropout_(dropout_of(opts)),
        kept_share_(
            static_cast<Real>(opts.dropout_mask ? 1 - opts.dropout.probability : kept_share(opts.dropout.probability))),
        scores_(static_cast<std::size_t>(seqlen_kv_)),
        sum_(static_cast<std::size_t>(head_dim_v_)) {}

  // Before any of these rows: what the hook makes of their scores.
  void ask_hook(std::int64_t first_row, std::int64_t count) {
    if (!hook_) return;
    first_hooked_ = first_row;
    hooked_.resize(static_cast<std::size_t>(count * seqlen_kv_));
    for (std::int64_t i = 0; i < count; ++i) {
      score(first_row + i, {0, seqlen_kv_});
      std::copy(scores_.begin(), scores_.end(), hooked_.begin() + i * seqlen_kv_);
    }
    hook_({batch_, q_.head, first_row, count, q_.rows(), seqlen_kv_, hooked_});
  }

  // Writes head_dim_v results, and returns the row's LSE.
  double attend(std::int64_t row, double* out) {
    const Span keys = visible_keys(row);
    std::fill_n(out, head_dim_v_, 0.0);
    if (keys.empty()) return static_cast<double>(sink_);
    if (hook_)
      take_hooked(row, keys);
    else
      score(row, keys);
    hide(row, keys);
    const auto first = scores_.begin() + keys.begin, end = scores_.begin() + keys.end;
    if (std::all_of(first, end, hides)) return static_cast<double>(sink_);  // as if it saw no key
    const Real max = std::max(*std::max_element(first, end), sink_);
    Real total = std::exp(sink_ - max);
    std::fill(sum_.begin(), sum_.end(), Real{0});
    const std::optional<DropoutRow> random = random_of(row);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      if (hides(scores_[key])) continue;
      const Real p = std::exp(scores_[key] - max);
      total += p;
      if (keeps(random, row, key)) add_multiple(rounded(p), &values_[key * head_dim_v_], sum_.data(), head_dim_v_);
    }
    for (std::int64_t i = 0; i < head_dim_v_; ++i) out[i] = rounded(sum_[i] / (total * kept_share_));
    return static_cast<double>(max + std::log(total));
  }

 private:
  struct Span {
    std::int64_t begin, end;
    bool empty() const { return end <= begin; }
  };

  QueryPlace place_of(std::int64_t row) const { return {batch_, q_.head, row, q_.rows(), seqlen_kv_}; }

  // What masks leave of the keys that leave the ones between two.
  Span visible_keys(std::int64_t row) const {
    const std::int64_t position = place_of(row).position(), chunk_size = opts_.chunk;
    const Window& window = opts_.window;
    Span keys{0, seqlen_kv_};
    if (opts_.prefix)
      keys.end = std::min(keys.end, std::max(position + 1, prefix_of(*opts_.prefix, batch_)));
    else if (opts_.causal)
      keys.end = std::min(keys.end, position + 1);
    if (window.left >= 0) keys.begin = std::max(keys.begin, position - std::min(window.left, kFarthest));
    if (chunk_size > 0) {
      const std::int64_t chunk = position >= 0 ? position / chunk_size : -1;
      keys.begin = std::max(keys.begin, chunk * chunk_size);
      keys.end = std::min(keys.end, chunk * chunk_size + chunk_size);
    }
    if (window.right >= 0) keys.end = std::min(keys.end, position + std::min(window.right, kFarthest) + 1);
    return keys;
  }

  // Those that masks hide among the keys that are left.
  void hide(std::int64_t row, const Span& keys) {
    if (!opts_.boolean_mask && !opts_.documents && !opts_.tree) return;
    for (std::int64_t key = keys.begin; key < keys.end; ++key)
      if (!is_shown(opts_, place_of(row), key)) scores_[key] = -std::numeric_limits<Real>::infinity();
  }
  // Empty where nothing is dropped at random.
  std::optional<DropoutRow> random_of(std::int64_t row) const {
    if (opts_.dropout_mask || dropout_.probability == 0) return {};
    return DropoutRow(dropout_, q_.tensor.shape[heads_dim], batch_, q_.head, row);
  }
  bool keeps(const std::optional<DropoutRow>& random, std::int64_t row, std::int64_t key) const {
    if (random) return random->keeps(key);
    return !opts_.dropout_mask || is_kept(*opts_.dropout_mask, place_of(row), key);
  }
  static bool hides(Real score) { return score == -std::numeric_limits<Real>::infinity(); }

  void take_hooked(std::int64_t row, const Span& keys) {
    const double* const hooked = &hooked_[(row - first_hooked_) * seqlen_kv_];
    for (std::int64_t key = keys.begin; key < keys.end; ++key) scores_[key] = static_cast<Real>(hooked[key]);
  }

  void score(std::int64_t row, const Span& keys) {
    const std::int64_t count = keys.end - keys.begin;
    Real* const scores = &scores_[keys.begin];
    std::fill_n(scores, count, Real{0});
    for (std::int64_t i = 0; i < q_.width(); ++i)
      add_multiple(static_cast<Real>(q_.at(row, i)), &keys_[i * seqlen_kv_ + keys.begin], scores, count);
    for (std::int64_t key = 0; key < count; ++key)
      scores[key] = changed(scores[key] * scale_, place_of(row), keys.begin + key);
  }

  // What the options make of a score.
  Real changed(Real score, const QueryPlace& place, std::int64_t key) const {
    if (softcap_ != 0) score = softcap_ * tanh(score / softcap_);
    if (slope_ != 0) score -= slope_ * static_cast<Real>(std::abs(place.position() - key));
    if (opts_.bias) score += static_cast<Real>(bias_of(*opts_.bias, place, key));
    return score;
  }

  static Real tanh(Real x) {
    if constexpr (std::is_same_v<Real, double>) return std::tanh(x);
    return static_cast<Real>(low_precision_tanh(static_cast<float>(x)));
  }

  Real rounded(Real value) const {
    if constexpr (std::is_same_v<Real, double>) return value;
    return static_cast<Real>(round_to(q_.tensor.dtype, value));
  }

  std::int64_t batch_;
  HeadView q_;
  const AttentionOptions& opts_;
  const ScoreHook& hook_;
  std::vector<Real> keys_;    // [head_dim, seqlen_kv]
  std::vector<Real> values_;  // [seqlen_kv, head_dim_v]
  std::int64_t seqlen_kv_, head_dim_v_;
  Real scale_;
  Real softcap_;  // 0: none
  Real slope_;    // 0: none
  Real sink_;     // -infinity: none
  Dropout dropout_;
  Real kept_share_;           // of probabilities
  std::vector<Real> scores_;  // of one row
  std::vector<Real> sum_;
  std::int64_t first_hooked_ = 0;
  std::vector<double> hooked_;  // of the rows from there on, [rows, seqlen_kv]
};

Result make_result(const Tensor& q, const Tensor& v) {
  Result result;
  result.shape = {q.shape[batch_dim], q.shape[seqlen_dim], q.shape[heads_dim], v.shape[head_dim_dim]};
  std::size_t rows = 1;
  for (const Dim dim : {batch_dim, seqlen_dim, heads_dim}) rows *= static_cast<std::size_t>(q.shape[dim]);
  result.out.resize(byte_count("out", DType::f32, result.shape) / size_of(DType::f32));
  result.lse.resize(rows, -kInfinity);
  return result;
}

// Rows of a head of a sequence.
struct Task {
  std::int64_t sequence, head, first, end;
};
std::vector<Task> tasks_of(const std::vector<SequencePlace>& sequences, std::int64_t heads) {
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < sequences.size(); ++i)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t first = 0; first < sequences[i].queries.count; first += kRowsPerTask)
        tasks.push_back(
            {static_cast<std::int64_t>(i), head, first, std::min(first + kRowsPerTask, sequences[i].queries.count)});
  return tasks;
}

template <typename Real>
Result compute_with_batch(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                          const ScoreHook& hook) {
  check_inputs(q, k, v, opts);
  Result result = make_result(q, v);
  if (result.lse.empty()) return result;
  const std::int64_t rows = q.shape[seqlen_dim], heads = q.shape[heads_dim], head_dim_v = v.shape[head_dim_dim];
  const std::int64_t heads_per_group = heads / k.shape[heads_dim];
  const std::vector<SequencePlace> sequences = sequences_of(q, k, opts);
  const std::vector<Task> tasks = tasks_of(sequences, heads);
  parallel_for(tasks.size(), [&](std::size_t index) {
    const Task& task = tasks[index];
    const auto& [queries, keys] = sequences[static_cast<std::size_t>(task.sequence)];
    const std::int64_t head_kv = task.head / heads_per_group;
    Head<Real> worker(task.sequence, {q, queries, task.head}, {k, keys, head_kv, in_one_form(opts.k_scale, k)},
                      {v, keys, head_kv, in_one_form(opts.v_scale, v)}, opts, hook);
    worker.ask_hook(task.first, task.end - task.first);
    for (std::int64_t row = task.first; row < task.end; ++row) {
      const std::int64_t at = queries.first + row;
      double* out = &result.out[((queries.batch * rows + at) * heads + task.head) * head_dim_v];
      result.lse[(queries.batch * heads + task.head) * rows + at] = worker.attend(row, out);
    }
  });
  return result;
}

template <typename Real>
Result compute(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts, const ScoreHook& hook) {
  if (!is_ragged(opts)) return compute_with_batch<Real>(q, k, v, opts, hook);
  const CallWithBatch with(q, k, v, {}, opts);
  Result result = compute_with_batch<Real>(with.q, with.k, with.v, with.opts, hook);
  if (lacks_batch(q, opts.cu_seqlens_q)) result.shape = without_batch(result.shape);
  return result;
}

// 0 for equal infinities and where both are NaN, as exact results are behind a NaN of the inputs; NaN when one is.
double distance(double a, double b) noexcept {
  return a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::abs(a - b);
}

// The larger one, and NaN once there was one: std::max would forget it.
void raise(double& max, double value) noexcept {
  if (!std::isnan(max) && !(value <= max)) max = value;
}

void check_same_shape(const char* name, const Dims& shape, const Dims& wanted) {
  if (shape == wanted) return;
  reject("{}: shape must be {} like that of exact, was {}", name, to_string(wanted), to_string(shape));
}

// Of results of this shape.
Dims lse_shape(const Dims& out) {
  return out.size() == kRank ? Dims{out[batch_dim], out[heads_dim], out[seqlen_dim]} : Dims{out[1], out[0]};
}

// merged: of the parts before it.
void add_part(Result& merged, const Result& part) {
  const Dims rows = lse_shape(merged.shape);
  const std::int64_t seqlen = rows[rows.size() - 1], heads = rows[rows.size() - 2];
  const auto width = static_cast<std::size_t>(merged.shape[merged.shape.size() - 1]);
  for (std::size_t i = 0; i < merged.lse.size(); ++i) {
    if (part.lse[i] == -kInfinity) continue;
    const double largest = std::max(merged.lse[i], part.lse[i]);
    const double before = std::exp(merged.lse[i] - largest), added = std::exp(part.lse[i] - largest);
    const auto row = static_cast<std::int64_t>(i);
    const std::int64_t batch_of_row = row / seqlen / heads, head = row / seqlen % heads;
    const auto first = static_cast<std::size_t>((batch_of_row * seqlen + row % seqlen) * heads + head) * width;
    for (std::size_t at = first; at < first + width; ++at)
      merged.out[at] = (before * merged.out[at] + added * part.out[at]) / (before + added);
    merged.lse[i] = largest + std::log(before + added);
  }
}

}  // namespace

Result attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_functions(opts);
  return compute<double>(q, k, v, opts, {});
}

Result attention_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_functions(opts);
  return compute<float>(q, k, v, opts, {});
}

Result attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                 const ScoreHook& hook) {
  return compute<double>(q, k, v, opts, hook);
}

Result attention_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts,
                                  const ScoreHook& hook) {
  return compute<float>(q, k, v, opts, hook);
}

Result merge(const std::vector<Result>& parts) {
  if (parts.empty()) reject("parts: must have at least 1, had 0");
  Result merged = parts.front();
  std::fill(merged.out.begin(), merged.out.end(), 0.0);
  std::fill(merged.lse.begin(), merged.lse.end(), -kInfinity);
  for (const Result& part : parts) {
    check_same_shape("parts", part.shape, merged.shape);
    add_part(merged, part);
  }
  return merged;
}

Comparison compare(const HostTensor& out, const Result& exact, const Result& low) {
  check_same_shape("out", out.shape(), exact.shape);
  check_same_shape("low", low.shape, exact.shape);
  Comparison comparison;
  double low_error = 0, largest = 0;
  for (std::size_t i = 0; i < exact.out.size(); ++i) {
    const double value = load_element(out.data(), out.dtype(), static_cast<std::int64_t>(i));
    raise(comparison.max_error, distance(value, exact.out[i]));
    // A yardstick that overflowed would let everything pass.
    if (std::isfinite(low.out[i]) && std::isfinite(exact.out[i])) {
      low_error = std::max(low_error, distance(low.out[i], exact.out[i]));
      largest = std::max(largest, std::abs(exact.out[i]));
    }
  }
  comparison.bound = 2 * low_error + 2 * generator::row_of(out.dtype()).rounding * largest;
  comparison.passed = comparison.max_error <= comparison.bound;
  return comparison;
}

Comparison compare_lse(const HostTensor& lse, const Result& exact, const Result& low) {
  // Absolute: a kernel may sum the probabilities after rounding them to bf16, each off by up to 2^-8 of itself in
  // either direction. Relative: its scores are sums in f32, whose errors grow with them. Both are far below what a lost
  // key, a wrong scale or the wrong base of the logarithm does to a short row.
  constexpr double kAbsolute = 2e-3, kRelative = 1e-5;
  check_same_shape("lse", lse.shape(), lse_shape(exact.shape));
  check_same_shape("low", low.shape, exact.shape);
  Comparison comparison;
  double low_error = 0, largest = 0;
  for (std::size_t i = 0; i < exact.lse.size(); ++i) {
    const double value = load_element(lse.data(), lse.dtype(), static_cast<std::int64_t>(i));
    raise(comparison.max_error, distance(value, exact.lse[i]));
    if (std::isfinite(exact.lse[i])) largest = std::max(largest, std::abs(exact.lse[i]));
    if (std::isfinite(low.lse[i]) && std::isfinite(exact.lse[i]))
      low_error = std::max(low_error, distance(low.lse[i], exact.lse[i]));
  }
  comparison.bound = 2 * low_error + kAbsolute + kRelative * largest;
  comparison.passed = comparison.max_error <= comparison.bound;
  return comparison;
}

}  // namespace flashjit::reference
