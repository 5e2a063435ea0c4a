// SPDX-License-Identifier: Apache-2.0
// A random batch of sequences of different lengths, in host memory and on an engine's device, with NaN in all that
// belongs to no sequence, and the check of what attention makes of it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashjit/flashjit.h"

namespace flashjit::tests {

class RaggedBatch {
 public:
  struct Choice {
    DType dtype = DType::bf16;
    int head_dim = 64, head_dim_v = 64;
    std::int64_t longest = 200;
    std::int64_t longest_queries = 0;  // 0: as long as keys
    std::int64_t page_size = 0;        // of keys and values; 0: these stand in rows
  };

  RaggedBatch(std::uint64_t seed, const Choice& choice) : dice_((seed + 1) * 0x9e3779b97f4a7c15), choice_(choice) {
    batch_ = from_to(1, 6);
    heads_kv_ = from_to(1, 2), heads_q_ = heads_kv_ * std::int64_t{1 << from_to(0, 2)};
    make_queries();
    if (choice.page_size > 0)
      make_pages();
    else
      make_keys();
    options.causal = from_to(0, 1) == 1;
    if (from_to(0, 3) == 0) options.window = {from_to(0, 90), options.causal ? -1 : from_to(0, 40)};
  }

  AttentionOptions options;  // of tensors in host memory: what the reference takes

  // What the engine computes in the place of poison.
  void check(Engine& engine, const std::optional<Variant>& variant = {}) const {
    const int device = engine.emulates() ? kHostMemory : -1;
    std::vector<DeviceTensor> owned;
    const auto move = [&](const HostTensor& tensor) -> const Tensor& {
      return owned.emplace_back(tensor.to_device(nullptr, device)).view();
    };
    owned.reserve(16);
    AttentionOptions on_device = options;
    for (const auto& [field, tensor] : int_tensors_) on_device.*field = move(tensor);
    const HostTensor out = poison(choice_.dtype, out_shape()), lse = poison(DType::f32, lse_shape());
    const Tensor out_on_device = move(out), lse_on_device = move(lse);
    on_device.lse = lse_on_device, on_device.variant = variant;
    const Tensor q = move(q_), k = view_of_keys(move(k_)), v = view_of_keys(move(v_));
    engine.attention(q, k, v, out_on_device, on_device);
    CAPTURE(description());
    compare(copied(owned, out_on_device, out), copied(owned, lse_on_device, lse));
  }

  std::string description() const {
    std::string text = "batch " + std::to_string(batch_) + " heads " + std::to_string(heads_q_) + "/" +
                       std::to_string(heads_kv_) + (options.causal ? " causal" : "") + " q " + to_string(q_.shape()) +
                       " k " + to_string(k_.shape()) + (heads_first_ ? " heads first" : "") + ":";
    for (std::int64_t i = 0; i < batch_; ++i)
      text += " " + std::to_string(queries_[i].count) + "x" + std::to_string(keys_[i].count);
    return text;
  }

  std::int64_t batch() const { return batch_; }
  const HostTensor& q() const { return q_; }
  Tensor k() const { return view_of_keys(k_.view()); }
  Tensor v() const { return view_of_keys(v_.view()); }
  Dims out_shape() const {
    Dims shape = q_.shape();
    shape[shape.size() - 1] = choice_.head_dim_v;
    return shape;
  }
  Dims lse_shape() const {
    return packed_queries_ ? Dims{heads_q_, q_.shape()[0]} : Dims{batch_, heads_q_, q_.shape()[1]};
  }
  const std::vector<std::pair<std::optional<Tensor> AttentionOptions::*, HostTensor>>& int_tensors() const {
    return int_tensors_;
  }

 private:
  struct Rows {
    std::int64_t batch, first, count;
  };

  std::int64_t from_to(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(dice_);
  }
  std::int64_t length() {
    const std::int64_t kinds[] = {0, 1, 5, 64, 100, 128, 130, choice_.longest};
    return from_to(0, 3) == 0 ? from_to(0, choice_.longest) : kinds[from_to(0, 7)];
  }
  std::int64_t most_queries() const { return choice_.longest_queries > 0 ? choice_.longest_queries : choice_.longest; }
  std::int64_t query_length() { return std::min(length(), most_queries()); }

  void make_queries() {
    packed_queries_ = from_to(0, 3) > 0;
    if (packed_queries_) {
      std::vector<std::int32_t> offsets{0}, used;
      const bool gaps = from_to(0, 1) == 1;
      for (std::int64_t i = 0; i < batch_; ++i) {
        const std::int64_t count = query_length();
        queries_.push_back({0, offsets.back(), count});
        offsets.push_back(static_cast<std::int32_t>(offsets.back() + count + (gaps ? from_to(0, 9) : 0)));
        used.push_back(static_cast<std::int32_t>(count));
      }
      add(&AttentionOptions::cu_seqlens_q, offsets);
      if (gaps) add(&AttentionOptions::seqused_q, used);
      fill(q_, {std::max(offsets.back() + from_to(0, 3), std::int64_t{1}), heads_q_, choice_.head_dim}, queries_, 1);
    } else {
      std::vector<std::int32_t> used;
      for (std::int64_t i = 0; i < batch_; ++i) {
        queries_.push_back({i, 0, query_length()});
        used.push_back(static_cast<std::int32_t>(queries_.back().count));
      }
      add(&AttentionOptions::seqused_q, used);
      fill(q_, {batch_, most_queries(), heads_q_, choice_.head_dim}, queries_, 1);
    }
  }

  void make_keys() {
    const bool packed = from_to(0, 1) == 1, padded = from_to(0, 2) == 0;
    std::vector<std::int32_t> offsets{0}, used, padding, batches;
    const std::int64_t entries = batch_ + from_to(0, 2);
    const bool elsewhere = !packed && from_to(0, 1) == 1;
    for (std::int64_t i = 0; i < batch_; ++i) {
      const std::int64_t count = length(), before = padded ? std::min(from_to(0, 7), count) : 0;
      batches.push_back(static_cast<std::int32_t>(elsewhere ? (i * 7 + 3) % entries : i));
      keys_.push_back({packed ? 0 : batches.back(), (packed ? offsets.back() : 0) + before, count - before});
      offsets.push_back(static_cast<std::int32_t>(offsets.back() + count + (packed && padded ? from_to(0, 5) : 0)));
      used.push_back(static_cast<std::int32_t>(count));
      padding.push_back(static_cast<std::int32_t>(before));
    }
    if (packed) add(&AttentionOptions::cu_seqlens_kv, offsets);
    if (!packed || padded) add(&AttentionOptions::seqused_kv, used);
    if (padded) add(&AttentionOptions::leftpad_kv, padding);
    if (elsewhere) add(&AttentionOptions::batch_indices_kv, batches);
    const std::int64_t rows = packed ? std::max<std::int64_t>(offsets.back(), 1) : choice_.longest;
    const Dims of_k = packed ? Dims{rows, heads_kv_, choice_.head_dim}
                             : Dims{elsewhere ? entries : batch_, rows, heads_kv_, choice_.head_dim};
    Dims of_v = of_k;
    of_v[of_v.size() - 1] = choice_.head_dim_v;
    fill(k_, of_k, keys_, 2);
    fill(v_, of_v, keys_, 3);
  }

  // In any order, now and then shared by two sequences, with rows of heads side by side or heads of rows. Unused
  // entries of the table are numbers of no page.
  void make_pages() {
    const std::int64_t page_size = choice_.page_size;
    const std::int64_t entries = (choice_.longest + page_size - 1) / page_size + from_to(0, 2);
    heads_first_ = from_to(0, 1) == 1;
    std::vector<std::int32_t> used, table(static_cast<std::size_t>(batch_ * entries));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = i % 2 == 0 ? -1 : 1 << 30;
    std::vector<std::int32_t> free(static_cast<std::size_t>(batch_ * entries + 3));
    for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(i);
    std::shuffle(free.begin(), free.end(), dice_);
    const auto pages = static_cast<std::int64_t>(free.size());
    std::vector<Rows> rows;
    for (std::int64_t i = 0; i < batch_; ++i) {
      const std::int64_t count = length();
      for (std::int64_t first = 0; first < count; first += page_size) {
        std::int32_t& page = table[static_cast<std::size_t>(i * entries + first / page_size)];
        const bool is_full = count - first >= page_size;
        const bool shares = is_full && i > 0 && from_to(0, 3) == 0 && keys_.back().count >= first + page_size;
        page = shares ? table[static_cast<std::size_t>((i - 1) * entries + first / page_size)] : free.back();
        if (!shares) free.pop_back();
        rows.push_back({page, 0, std::min(count - first, page_size)});
      }
      keys_.push_back({0, 0, count});
      used.push_back(static_cast<std::int32_t>(count));
    }
    add(&AttentionOptions::seqused_kv, used);
    add(&AttentionOptions::page_table, table, Dims{batch_, entries});
    fill_pages(k_, {pages, page_size, heads_kv_, choice_.head_dim}, rows, 2);
    fill_pages(v_, {pages, page_size, heads_kv_, choice_.head_dim_v}, rows, 3);
  }

  void fill_pages(HostTensor& tensor, const Dims& shape, const std::vector<Rows>& rows, std::uint64_t seed) {
    fill(tensor, shape, rows, seed);
    if (!heads_first_) return;
    HostTensor moved(choice_.dtype, {shape[0], shape[2], shape[1], shape[3]});
    const Tensor to = view_of_keys(moved.view());
    std::int64_t from = 0;
    for (std::int64_t page = 0; page < shape[0]; ++page)
      for (std::int64_t row = 0; row < shape[1]; ++row)
        for (std::int64_t head = 0; head < shape[2]; ++head)
          for (std::int64_t column = 0; column < shape[3]; ++column)
            store_element(to.data, to.dtype, page * to.strides[0] + row * to.strides[1] + head * to.strides[2] + column,
                          load_element(tensor.data(), tensor.dtype(), from++));
    tensor = std::move(moved);
  }
  Tensor view_of_keys(Tensor tensor) const {
    if (!heads_first_) return tensor;
    const Dims shape = tensor.shape, strides = tensor.strides;
    return {tensor.data,
            tensor.dtype,
            {shape[0], shape[2], shape[1], shape[3]},
            {strides[0], strides[2], strides[1], strides[3]}};
  }

  void add(std::optional<Tensor> AttentionOptions::*field, const std::vector<std::int32_t>& values,
           const std::optional<Dims>& shape = {}) {
    HostTensor tensor(DType::i32, shape.value_or(Dims{static_cast<std::int64_t>(values.size())}));
    std::memcpy(tensor.data(), values.data(), values.size() * sizeof(std::int32_t));
    int_tensors_.emplace_back(field, std::move(tensor));
    options.*field = int_tensors_.back().second.view();
  }

  static HostTensor poison(DType dtype, const Dims& shape) {
    HostTensor tensor(dtype, shape);
    for (std::size_t i = 0; i < tensor.element_count(); ++i)
      store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
    return tensor;
  }

  // Normal numbers in these rows, and NaN elsewhere.
  void fill(HostTensor& tensor, const Dims& shape, const std::vector<Rows>& rows, std::uint64_t seed) {
    const HostTensor values = HostTensor::random_normal(choice_.dtype, shape, dice_() ^ seed);
    tensor = poison(choice_.dtype, shape);
    const int rank = shape.size();
    const std::int64_t row = shape[rank - 1] * shape[rank - 2], entry = rank == 4 ? shape[1] * row : 0;
    const auto bytes = static_cast<std::int64_t>(size_of(choice_.dtype));
    for (const Rows& of : rows)
      std::memcpy(static_cast<char*>(tensor.data()) + (of.batch * entry + of.first * row) * bytes,
                  static_cast<const char*>(values.data()) + (of.batch * entry + of.first * row) * bytes,
                  static_cast<std::size_t>(of.count * row * bytes));
  }

  static HostTensor copied(const std::vector<DeviceTensor>& owned, const Tensor& view, const HostTensor& like) {
    HostTensor copy(like.dtype(), like.shape());
    for (const DeviceTensor& tensor : owned)
      if (tensor.data() == view.data) tensor.copy_to_host(copy.data());
    return copy;
  }

  // Rows of no sequence are still poison; then they take the reference's place, and the rest has to be near it.
  void compare(HostTensor out, HostTensor lse) const {
    reference::Result exact = reference::attention(q_.view(), k(), v(), options);
    reference::Result low = reference::attention_in_low_precision(q_.view(), k(), v(), options);
    const std::int64_t rows = q_.shape()[packed_queries_ ? 0 : 1], heads = heads_q_, width = choice_.head_dim_v;
    std::vector<bool> used(exact.lse.size() / static_cast<std::size_t>(heads));
    for (const Rows& of : queries_)
      for (std::int64_t i = 0; i < of.count; ++i) used[static_cast<std::size_t>(of.batch * rows + of.first + i)] = true;
    std::int64_t written = 0;
    for (std::int64_t row = 0; row < static_cast<std::int64_t>(used.size()); ++row) {
      if (used[static_cast<std::size_t>(row)]) continue;
      for (std::int64_t at = row * heads * width; at < (row + 1) * heads * width; ++at) {
        written += load_element(out.data(), out.dtype(), at) == load_element(out.data(), out.dtype(), at);
        store_element(out.data(), out.dtype(), at, 0);
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t at = (row / rows * heads + head) * rows + row % rows;
        written += load_element(lse.data(), lse.dtype(), at) == load_element(lse.data(), lse.dtype(), at);
        store_element(lse.data(), lse.dtype(), at, -std::numeric_limits<double>::infinity());
      }
    }
    CHECK(written == 0);
    const reference::Comparison of_out = reference::compare(out, exact, low);
    const reference::Comparison of_lse = reference::compare_lse(lse, exact, low);
    CAPTURE(of_out.max_error);
    CAPTURE(of_out.bound);
    CHECK(of_out.passed);
    CAPTURE(of_lse.max_error);
    CHECK(of_lse.passed);
  }

  std::mt19937_64 dice_;
  Choice choice_;
  std::int64_t batch_ = 0, heads_q_ = 0, heads_kv_ = 0;
  bool packed_queries_ = false;
  bool heads_first_ = false;  // k_ and v_ are [pages, num_heads, page_size, head_dim]
  std::vector<Rows> queries_, keys_;
  HostTensor q_, k_, v_;
  std::vector<std::pair<std::optional<Tensor> AttentionOptions::*, HostTensor>> int_tensors_;
};

}  // namespace flashjit::tests
