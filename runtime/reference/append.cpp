// SPDX-License-Identifier: Apache-2.0
// New keys and values written into a cache on the CPU, by the words of include/flashjit/append.h.
#include "runtime/call/append.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "flashjit/reference.h"
#include "generator/dtype.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/reference/rotary.h"

namespace flashjit::reference {
namespace {

using runtime::AppendCall;

std::int64_t number(const Tensor& numbers, std::int64_t index) {
  return static_cast<std::int64_t>(load_element(numbers.data, numbers.dtype, index));
}
// Where there is none: otherwise.
std::int64_t number(const std::optional<Tensor>& numbers, std::int64_t index, std::int64_t otherwise) {
  return numbers ? number(*numbers, index) : otherwise;
}

// A token in a tensor.
struct TokenPlace {
  std::int64_t batch, row;  // of a cache, page and row

  bool is_in(const Tensor& tensor) const noexcept {
    return batch >= 0 && batch < tensor.shape[runtime::batch_dim] && row >= 0 &&
           row < tensor.shape[runtime::seqlen_dim];
  }
  // The first element of a head.
  std::int64_t head(const Tensor& tensor, std::int64_t head) const noexcept {
    return batch * tensor.strides[runtime::batch_dim] + row * tensor.strides[runtime::seqlen_dim] +
           head * tensor.strides[runtime::heads_dim];
  }
};

class Appender {
 public:
  explicit Appender(const AppendCall& call) : call_(call), opts_(call.opts), rotary_(call.opts) {}

  void by_slots() const {
    const std::int64_t page_size = call_.k_cache.shape[runtime::seqlen_dim];
    for (std::int64_t token = 0; token < call_.tokens(); ++token) {
      const std::int64_t slot = number(*opts_.slots, token);
      const bool exists = slot >= 0 && page_size > 0;
      write(token, exists ? TokenPlace{slot / page_size, slot % page_size} : kNowhere, 0);
    }
  }
  void by_sequences() const {
    const std::int64_t rows = call_.k.shape[runtime::seqlen_dim];
    for (std::int64_t sequence = 0; sequence < call_.batch; ++sequence) {
      const std::int64_t begin = number(opts_.cu_seqlens, sequence, sequence * rows);
      const std::int64_t end =
          opts_.cu_seqlens ? std::min(number(*opts_.cu_seqlens, sequence + 1), rows) : begin + rows;
      for (std::int64_t token = std::max<std::int64_t>(begin, 0); token < end; ++token) {
        const std::int64_t row = number(*opts_.seqused_kv, sequence) - (end - token);
        write(token, place_of(sequence, row), row - number(opts_.leftpad_kv, sequence, 0));
      }
    }
  }

 private:
  static constexpr TokenPlace kNowhere{-1, -1};

  TokenPlace place_of(std::int64_t sequence, std::int64_t row) const {
    const std::int64_t entry = number(opts_.batch_indices_kv, sequence, sequence);
    if (!opts_.page_table) return {entry, row};
    const Tensor& table = *opts_.page_table;
    if (entry < 0 || entry >= table.shape[0] || row < 0 || row >= call_.rows_of_sequence()) return kNowhere;
    const std::int64_t page_size = call_.k_cache.shape[runtime::seqlen_dim];
    return {number(table, entry * table.strides[0] + row / page_size), row % page_size};
  }

  void write(std::int64_t token, const TokenPlace& target, std::int64_t position) const {
    const std::int64_t rows = call_.k.shape[runtime::seqlen_dim];
    const TokenPlace source{token / rows, token % rows};
    position = number(opts_.positions, token, position);
    if (target.is_in(call_.k_cache)) {
      move(call_.k, source, call_.k_cache, target, position, !opts_.k_rotary, opts_.k_scale);
      if (!call_.has_one_cache()) move(call_.v, source, call_.v_cache, target, position, false, opts_.v_scale);
      if (opts_.k_rotary) move(call_.k_rotary, source, *opts_.k_rotary_cache, target, position, true, {});
    }
    if (opts_.q) move(call_.q, source, call_.q_out, source, position, true, {});
  }
  void move(const Tensor& from, const TokenPlace& source, const Tensor& to, const TokenPlace& target,
            std::int64_t position, bool turns, const std::optional<Tensor>& scale) const {
    for (std::int64_t head = 0; head < from.shape[runtime::heads_dim]; ++head) {
      const char* const row = element_of(from, source.head(from, head));
      char* const into = element_of(to, target.head(to, head));
      const std::int64_t width = from.shape[runtime::head_dim_dim];
      const bool has_rotary = turns && opts_.rotary_cos;
      if (generator::is_of_8_bits(to.dtype)) {
        std::vector<float> values(static_cast<std::size_t>(width));
        for (std::int64_t i = 0; i < width; ++i)
          values[static_cast<std::size_t>(i)] = static_cast<float>(load_element(row, from.dtype, i));
        if (has_rotary) turn_row(values.data(), DType::f32, rotary_, position);
        store_scaled(values, into, to.dtype, scale, target, head);
      } else {
        std::memmove(into, row, static_cast<std::size_t>(width) * size_of(from.dtype));
        if (has_rotary) turn_row(into, from.dtype, rotary_, position);
      }
    }
  }
  static char* element_of(const Tensor& tensor, std::int64_t index) {
    return static_cast<char*>(tensor.data) + index * static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  // In 8 bits, divided by their scale, which those of tokens are given here.
  void store_scaled(const std::vector<float>& values, void* into, DType dtype, const std::optional<Tensor>& scale,
                    const TokenPlace& target, std::int64_t head) const {
    const auto largest_stored = static_cast<float>(generator::largest_of_8_bits(dtype));
    float divisor = 1;
    if (scale) {
      const Tensor form = runtime::in_one_form(scale, call_.k_cache);
      const std::int64_t at = target.head(form, head);
      if (call_.scales().of_tokens()) {
        float largest = 0;
        for (const float value : values)
          if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
        store_element(form.data, DType::f32, at, std::max(largest / largest_stored, std::numeric_limits<float>::min()));
      }
      divisor = static_cast<float>(load_element(form.data, DType::f32, at));
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      store_element(into, dtype, static_cast<std::int64_t>(i), values[i] / divisor);
  }

  const AppendCall& call_;
  const AppendOptions& opts_;
  const runtime::GivenRotary rotary_;
};

}  // namespace

void append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const AppendOptions& opts) {
  const AppendCall call(k, v, k_cache, v_cache, opts);
  if (opts.slots)
    Appender(call).by_slots();
  else
    Appender(call).by_sequences();
}

}  // namespace flashjit::reference
