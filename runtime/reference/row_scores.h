// SPDX-License-Identifier: Apache-2.0
// The scores of one query head, row by row, with all that options make of them: what the softmax takes.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "generator/dtype.h"
#include "runtime/call/dropout.h"
#include "runtime/reference/aligned_sums.h"
#include "runtime/reference/head_view.h"
#include "runtime/reference/reference_scores.h"
#include "runtime/reference/reference_tensors.h"

namespace flashjit::reference {

// At once: enough to pay for unpacking the keys and values of a head, and for a hook.
inline constexpr std::int64_t kRowsOfTask = 128;

// One of f32 [num_heads] or [batch, num_heads].
double value_of_head(const std::optional<Tensor>& values, std::int64_t batch, std::int64_t head, double none) noexcept;
double round_to(DType dtype, double value) noexcept;
// As the instruction of the kernels gives it, which is exact to 2^-11: 11 binary digits.
float low_precision_tanh(float x) noexcept;

// Keys from begin on, before end.
struct KeyRange {
  std::int64_t begin, end;
  bool empty() const { return end <= begin; }
};
// What masks leave of the keys of a row, that leave the ones between two.
KeyRange visible_keys(const AttentionOptions& opts, const QueryPlace& place) noexcept;

// How users' functions make scores; empty: there are none.
struct ScoreHooks {
  const ScoreHook& scores;
  bool differentiates = false;  // derivatives are wanted, too
};

// Real = double is the oracle. Real = float is the yardstick, with tanh of low precision, and products of e4m3 as
// instructions of these add them up.
template <typename Real>
class RowScores {
 public:
  // batch: the sequence; k_rotary: null, or the columns behind those of k.
  RowScores(std::int64_t batch, const HeadView& q, const HeadView& k, const HeadView* k_rotary,
            const AttentionOptions& opts, const ScoreHooks& hooks)
      : batch_(batch),
        q_(q),
        opts_(opts),
        hooks_(hooks),
        key_scales_(sums_aligned() ? static_cast<std::size_t>(k.rows()) : 0),
        keys_(unpack<Real>(sums_aligned() ? k.without_scale() : k, true)),
        seqlen_kv_(k.rows()),
        scale_(static_cast<Real>(opts.softmax_scale ? *opts.softmax_scale : 1 / std::sqrt(1.0 * q.width()))),
        softcap_(opts.softcap),
        slope_(static_cast<Real>(value_of_head(opts.alibi_slopes, batch, q.head, 0))),
        sink_(static_cast<Real>(value_of_head(opts.sinks, batch, q.head, -std::numeric_limits<double>::infinity()))),
        dropout_(dropout_of(opts)),
        kept_share_(static_cast<Real>(opts.dropout_mask ? 1 - opts.dropout.probability
                                                        : flashjit::kept_share(opts.dropout.probability))),
        scores_(static_cast<std::size_t>(seqlen_kv_)),
        cap_slopes_(hooks.differentiates ? scores_.size() : 0) {
    for (std::size_t key = 0; key < key_scales_.size(); ++key) key_scales_[key] = k.scale_of(key);
    if (!k_rotary) return;
    const std::vector<Real> behind = unpack<Real>(*k_rotary, true);
    keys_.insert(keys_.end(), behind.begin(), behind.end());
  }

  // Before any of these rows: what the hook makes of their scores.
  void ask_hook(std::int64_t first_row, std::int64_t count) {
    if (!hooks_.scores) return;
    first_hooked_ = first_row;
    hooked_.resize(static_cast<std::size_t>(count * seqlen_kv_));
    for (std::int64_t i = 0; i < count; ++i) {
      score(first_row + i, {0, seqlen_kv_});
      std::copy(scores_.begin(), scores_.end(), hooked_.begin() + i * seqlen_kv_);
    }
    if (hooks_.differentiates) slopes_.resize(hooked_.size());
    hooks_.scores({batch_, q_.head, first_row, count, q_.rows(), seqlen_kv_, hooked_,
                   hooks_.differentiates ? &slopes_ : nullptr});
  }

  // Makes the scores of a row. The keys of which it sees some; empty where it sees none.
  KeyRange of_row(std::int64_t row) {
    const KeyRange keys = visible_keys(opts_, place_of(row));
    if (keys.empty()) return {};
    if (!hooks_.scores || hooks_.differentiates) score(row, keys);  // by which the slopes of the cap are found, too
    if (hooks_.scores) take_hooked(row, keys);
    hide(row, keys);
    const auto first = scores_.begin() + keys.begin, end = scores_.begin() + keys.end;
    if (std::all_of(first, end, [](Real s) { return s == -kInfinity; })) return {};
    max_ = std::max(*std::max_element(first, end), sink_);
    random_.reset();
    if (!opts_.dropout_mask && dropout_.probability != 0)
      random_.emplace(dropout_, q_.tensor.shape[heads_dim], batch_, q_.head, row);
    row_ = row;
    return keys;
  }
  // Of that row.
  Real operator[](std::int64_t key) const { return scores_[static_cast<std::size_t>(key)]; }
  bool hides(std::int64_t key) const { return (*this)[key] == -kInfinity; }
  Real max() const noexcept { return max_; }  // with its sink
  bool keeps(std::int64_t key) const {        // by dropout
    if (random_) return random_->keeps(key);
    return !opts_.dropout_mask || is_kept(*opts_.dropout_mask, place_of(row_), key);
  }

  // Derivatives of the row's scores, where they are wanted: by what users' functions get, and by scaled products.
  Real by_function(std::int64_t key) const {
    return hooks_.scores ? static_cast<Real>(slopes_[(row_ - first_hooked_) * seqlen_kv_ + key]) : Real{1};
  }
  Real by_product(std::int64_t key) const { return by_function(key) * (softcap_ != 0 ? cap_slopes_[key] : Real{1}); }

  Real scale() const noexcept { return scale_; }
  Real sink() const noexcept { return sink_; }              // -infinity: none
  Real kept_share() const noexcept { return kept_share_; }  // of probabilities

 private:
  static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();

  QueryPlace place_of(std::int64_t row) const { return {batch_, q_.head, row, q_.rows(), seqlen_kv_}; }

  // Those that masks hide among the keys that are left.
  void hide(std::int64_t row, const KeyRange& keys) {
    if (!opts_.boolean_mask && !opts_.documents && !opts_.tree) return;
    for (std::int64_t key = keys.begin; key < keys.end; ++key)
      if (!is_shown(opts_, place_of(row), key)) scores_[key] = -kInfinity;
  }

  void take_hooked(std::int64_t row, const KeyRange& keys) {
    const double* const hooked = &hooked_[(row - first_hooked_) * seqlen_kv_];
    for (std::int64_t key = keys.begin; key < keys.end; ++key) scores_[key] = static_cast<Real>(hooked[key]);
  }

  void score(std::int64_t row, const KeyRange& keys) {
    const std::int64_t count = keys.end - keys.begin;
    Real* const scores = &scores_[keys.begin];
    std::fill_n(scores, count, Real{0});
    sums_aligned() ? add_aligned_products(row, keys) : add_products(row, keys);
    for (std::int64_t key = 0; key < count; ++key) {
      scores[key] *= scale_;
      if (softcap_ != 0) scores[key] = capped(scores[key], keys.begin + key);
      scores[key] = changed(scores[key], place_of(row), keys.begin + key);
    }
  }

  // To the scores of the keys, which are 0.
  void add_products(std::int64_t row, const KeyRange& keys) {
    const double scale = q_.scale_of(row);
    for (std::int64_t i = 0; i < q_.width(); ++i)
      add_multiple(static_cast<Real>(q_.at(row, i) * scale), &keys_[i * seqlen_kv_ + keys.begin], &scores_[keys.begin],
                   keys.end - keys.begin);
  }
  void add_aligned_products(std::int64_t row, const KeyRange& keys) {
    std::vector<float> query(static_cast<std::size_t>(q_.width()));
    for (std::int64_t i = 0; i < q_.width(); ++i) query[i] = static_cast<float>(q_.at(row, i));
    if constexpr (std::is_same_v<Real, float>) {
      for (std::int64_t i = 0; i < q_.width(); i += kTermsOfStep)
        for (std::int64_t key = keys.begin; key < keys.end; ++key)
          scores_[key] =
              add_aligned(scores_[key], &query[i], &keys_[i * seqlen_kv_ + key], seqlen_kv_,
                          static_cast<int>(std::min<std::int64_t>(q_.width() - i, kTermsOfStep)), q_.tensor.dtype);
    }
    for (std::int64_t key = keys.begin; key < keys.end; ++key)
      scores_[key] *= static_cast<Real>(q_.scale_of(row) * key_scales_[key]);
  }
  bool sums_aligned() const { return std::is_same_v<Real, float> && generator::is_of_8_bits(q_.tensor.dtype); }

  Real capped(Real score, std::int64_t key) {
    const Real share = tanh(score / softcap_);
    if (hooks_.differentiates) cap_slopes_[key] = 1 - share * share;
    return softcap_ * share;
  }

  // What the options make of a capped score.
  Real changed(Real score, const QueryPlace& place, std::int64_t key) const {
    if (slope_ != 0) score -= slope_ * static_cast<Real>(std::abs(place.position() - key));
    if (opts_.bias) score += static_cast<Real>(bias_of(*opts_.bias, place, key));
    return score;
  }

  static Real tanh(Real x) {
    if constexpr (std::is_same_v<Real, double>) return std::tanh(x);
    return static_cast<Real>(low_precision_tanh(static_cast<float>(x)));
  }

  std::int64_t batch_;
  HeadView q_;
  const AttentionOptions& opts_;
  const ScoreHooks hooks_;
  std::vector<double> key_scales_;  // that are not in keys_: beside queries of e4m3
  std::vector<Real> keys_;          // [head_dim, seqlen_kv]
  std::int64_t seqlen_kv_;
  Real scale_;
  Real softcap_;  // 0: none
  Real slope_;    // 0: none
  Real sink_;
  Dropout dropout_;
  Real kept_share_;
  std::vector<Real> scores_, cap_slopes_;  // of one row
  Real max_ = 0;
  std::optional<runtime::DropoutRow> random_;  // empty where nothing is dropped at random
  std::int64_t row_ = 0;
  std::int64_t first_hooked_ = 0;
  std::vector<double> hooked_, slopes_;  // of the rows from there on, [rows, seqlen_kv]
};

}  // namespace flashjit::reference
