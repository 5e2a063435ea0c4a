// SPDX-License-Identifier: Apache-2.0
// New tokens on their way into a cache, drawn at random: where they go, some of them nowhere; how caches lie in memory;
// what turns, and whether that is in a tensor of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashjit/append.h"
#include "flashjit/tensor.h"

namespace flashjit::tests {

class AppendDice {
 public:
  explicit AppendDice(std::uint64_t seed) : bits_(seed) {}
  std::int64_t up_to(std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(bits_); }
  bool coin() { return up_to(1) == 1; }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[up_to(static_cast<std::int64_t>(values.size()) - 1)];
  }
  template <class Values>
  void shuffle(Values& values) {
    std::shuffle(values.begin(), values.end(), bits_);
  }

 private:
  std::mt19937_64 bits_;
};

inline HostTensor whole_numbers(DType dtype, const std::vector<std::int64_t>& values, const Dims& shape) {
  const std::vector<double> doubles(values.begin(), values.end());
  return HostTensor::from_doubles(dtype, shape, doubles.data(), doubles.size());
}
inline HostTensor whole_numbers(DType dtype, const std::vector<std::int64_t>& values) {
  return whole_numbers(dtype, values, {static_cast<std::int64_t>(values.size())});
}
// Every bit is set: NaN, which nothing else in a case is.
inline HostTensor poisoned(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  if (tensor.element_count() > 0) std::memset(tensor.data(), 0xff, tensor.element_count() * size_of(dtype));
  return tensor;
}

// Which way tokens go.
enum class AppendWay { slots, pages, batch_entries };

// Tensors and options without memory for them: whoever runs it says where the memory of each is.
struct AppendCase {
  explicit AppendCase(std::uint64_t seed) : AppendCase(AppendDice(seed)) {}

  // Memory: what is read, in the order of `inputs`, and what is written.
  enum Input {
    k,
    v,
    k_rotary,
    q,
    slots,
    positions,
    cu_seqlens,
    seqused,
    indices,
    padding,
    table,
    cosines,
    sines,
    kInputs
  };
  enum Output { pool, turned_q, kOutputs };
  std::vector<HostTensor> inputs = std::vector<HostTensor>(kInputs);
  Dims pool_shape, q_shape;

  DType dtype = DType::f16;
  AppendWay way = AppendWay::slots;
  bool ragged = false, rotary = false, interleaved = false, has_positions = false, has_q = false, in_place = false;
  bool has_indices = false, has_padding = false, heads_first = false, has_one_cache = false;
  std::int64_t batch = 1, heads = 1, head_dim = 8, head_dim_v = 8, heads_q = 1, page_size = 1, pages = 1;
  std::int64_t rotary_dim = 0;  // of k_rotary

  std::string describe() const {
    return std::string(to_string(dtype)) +
           (way == AppendWay::slots   ? " slots"
            : way == AppendWay::pages ? " pages"
                                      : "") +
           (ragged ? " ragged" : "") + (rotary ? interleaved ? " neighbours" : " halves" : "") +
           (has_positions ? " positions" : "") + (has_q ? in_place ? " q in place" : " q" : "") +
           (has_indices ? " indices" : "") + (has_padding ? " padding" : "") + (heads_first ? " heads first" : "") +
           (has_one_cache ? " one cache" : "") + " " + to_string(pool_shape) + " " + to_string(inputs[k].shape()) +
           " v" + std::to_string(head_dim_v) + " rotary" + std::to_string(rotary_dim);
  }

  // What of keys turns.
  std::int64_t turning_dim() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  const Tensor& values(const std::vector<Tensor>& given) const { return given[has_one_cache ? k : v]; }
  // append(k, v, k_cache, v_cache, opts) of tensors that lie there, into a pool.
  template <class Append>
  void run(const std::vector<Tensor>& given, void* memory, const Tensor& q_out, const Append& append) const {
    AppendOptions opts = options(given, q_out);
    if (rotary_dim > 0) opts.k_rotary_cache = cache(memory, dim_of_pool() - rotary_dim, rotary_dim);
    const Tensor k_cache = cache(memory, 0, head_dim);
    append(given[k], values(given), k_cache, has_one_cache ? k_cache : cache(memory, head_dim, head_dim_v), opts);
  }
  // Tensors that the case lacks are not looked at. In place, q is the second output.
  AppendOptions options(const std::vector<Tensor>& given, const Tensor& q_out) const {
    AppendOptions opts;
    const auto set = [&](std::optional<Tensor>& option, Input input) {
      if (inputs[input].shape().size() > 0) option = given[input];
    };
    set(opts.slots, slots), set(opts.positions, positions), set(opts.cu_seqlens, cu_seqlens);
    set(opts.seqused_kv, seqused), set(opts.batch_indices_kv, indices), set(opts.leftpad_kv, padding);
    set(opts.page_table, table), set(opts.rotary_cos, cosines), set(opts.rotary_sin, sines);
    set(opts.k_rotary, k_rotary);
    opts.rotary_interleaved = interleaved;
    if (has_q) opts.q = in_place ? q_out : given[q], opts.q_out = q_out;
    return opts;
  }

 private:
  explicit AppendCase(AppendDice dice);
  // A view of the pool: on each page come keys, then values that are not these, then what of keys is apart.
  std::int64_t dim_of_pool() const { return head_dim + (has_one_cache ? 0 : head_dim_v) + rotary_dim; }
  Tensor cache(void* memory, std::int64_t dims_before, std::int64_t dim) const {
    const std::int64_t rows = page_size * heads, page = rows * dim_of_pool();
    char* const data = static_cast<char*>(memory) + rows * dims_before * static_cast<std::int64_t>(size_of(dtype));
    return heads_first ? Tensor(data, dtype, {pages, page_size, heads, dim}, {page, dim, page_size * dim, 1})
                       : Tensor(data, dtype, {pages, page_size, heads, dim}, {page, heads * dim, dim, 1});
  }
  void draw_places(AppendDice& dice, const std::vector<std::int64_t>& added);
  void draw_pages(AppendDice& dice, std::int64_t rows_of_table, const std::vector<std::int64_t>& used);
  void draw_rotary(AppendDice& dice, std::int64_t tokens, std::int64_t longest);
};

inline AppendCase::AppendCase(AppendDice dice) {
  dtype = dice.one_of({DType::f16, DType::bf16});
  way = dice.one_of({AppendWay::slots, AppendWay::pages, AppendWay::batch_entries});
  heads = 1 + dice.up_to(3), heads_q = 1 + dice.up_to(11);
  head_dim = dice.one_of<std::int64_t>({16, 24, 64, 80, 128, 264}),
  head_dim_v = dice.one_of<std::int64_t>({8, 64, 128});
  rotary_dim = dice.one_of<std::int64_t>({0, 0, 16, 64});
  has_one_cache = rotary_dim > 0 && dice.coin();
  if (has_one_cache) head_dim_v = head_dim;
  heads_first = dice.coin();
  ragged = dice.coin() && way != AppendWay::slots;
  // So many that warps look for a token's sequence together.
  batch = 1 + dice.up_to(ragged && dice.up_to(3) == 0 ? 80 : 4);
  // Some sequences get no new token.
  std::vector<std::int64_t> added(static_cast<std::size_t>(batch), 1 + dice.up_to(4));
  if (ragged)
    for (std::int64_t& count : added) count = std::max<std::int64_t>(0, dice.up_to(9) - 3);
  const std::int64_t tokens = std::accumulate(added.begin(), added.end(), std::int64_t{0});
  // Behind packed tokens there may be some of no sequence.
  const std::int64_t total = ragged ? tokens + dice.up_to(3) : tokens;
  const auto rows = [&](std::int64_t of_heads, std::int64_t dim) {
    if (ragged || (way == AppendWay::slots && heads_first)) return Dims{total, of_heads, dim};
    return Dims{batch, total / batch, of_heads, dim};
  };
  inputs[k] = HostTensor::random_normal(dtype, rows(heads, head_dim), 11);
  inputs[v] = HostTensor::random_normal(dtype, rows(heads, head_dim_v), 12);
  if (rotary_dim > 0) inputs[k_rotary] = HostTensor::random_normal(dtype, rows(heads, rotary_dim), 14);
  q_shape = rows(heads_q, turning_dim());
  draw_places(dice, added);
  rotary = dice.coin();
  if (rotary) draw_rotary(dice, total, 200);
  pool_shape = {pages, page_size * heads * dim_of_pool()};
}

inline void AppendCase::draw_places(AppendDice& dice, const std::vector<std::int64_t>& added) {
  page_size = dice.one_of<std::int64_t>({1, 3, 16});
  if (way == AppendWay::slots) {
    const std::int64_t tokens =
        inputs[k].shape().size() == 3 ? inputs[k].shape()[0] : inputs[k].shape()[0] * inputs[k].shape()[1];
    pages = tokens / page_size + 2;
    std::vector<std::int64_t> places(static_cast<std::size_t>(pages * page_size));
    std::iota(places.begin(), places.end(), 0);
    dice.shuffle(places);
    places.resize(static_cast<std::size_t>(tokens));
    for (std::int64_t& place : places)
      if (dice.up_to(4) == 0) place = dice.one_of<std::int64_t>({-1, -70, pages * page_size});
    inputs[slots] = whole_numbers(dice.one_of({DType::i32, DType::i64}), places);
    return;
  }
  has_padding = way == AppendWay::batch_entries && dice.coin();
  has_indices = dice.coin();
  std::vector<std::int64_t> used, before, starts{0};
  for (const std::int64_t count : added) {
    before.push_back(has_padding ? dice.up_to(5) : 0);
    used.push_back(before.back() + dice.up_to(40) + count);
    starts.push_back(starts.back() + count);
  }
  inputs[seqused] = whole_numbers(DType::i32, used);
  if (has_padding) inputs[padding] = whole_numbers(DType::i32, before);
  if (ragged) inputs[cu_seqlens] = whole_numbers(DType::i32, starts);
  const std::int64_t rows_of_table = batch + (has_indices ? 2 : 0);
  if (has_indices) {
    std::vector<std::int64_t> of_sequences(static_cast<std::size_t>(rows_of_table));
    std::iota(of_sequences.begin(), of_sequences.end(), 0);
    dice.shuffle(of_sequences);
    of_sequences.resize(static_cast<std::size_t>(batch));
    inputs[indices] = whole_numbers(DType::i32, of_sequences);
  }
  draw_pages(dice, rows_of_table, used);
}

inline void AppendCase::draw_pages(AppendDice& dice, std::int64_t rows_of_table,
                                   const std::vector<std::int64_t>& used) {
  const std::int64_t longest = *std::max_element(used.begin(), used.end());
  if (way == AppendWay::batch_entries) {
    pages = rows_of_table, page_size = longest + dice.up_to(3);
    if (page_size == 0) page_size = 1;
    return;
  }
  const std::int64_t entries = longest / page_size + 1;
  pages = rows_of_table * entries + 3;
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(pages));
  std::iota(numbers.begin(), numbers.end(), 0);
  dice.shuffle(numbers);
  numbers.resize(static_cast<std::size_t>(rows_of_table * entries));
  for (std::int64_t& number : numbers)
    if (dice.up_to(9) == 0) number = dice.one_of<std::int64_t>({-1, pages});
  inputs[table] = whole_numbers(DType::i32, numbers, {rows_of_table, entries});
}

inline void AppendCase::draw_rotary(AppendDice& dice, std::int64_t tokens, std::int64_t longest) {
  interleaved = dice.coin(), has_q = dice.coin(), in_place = has_q && dice.coin();
  has_positions = way == AppendWay::slots || dice.coin();
  if (has_q) inputs[q] = HostTensor::random_normal(dtype, q_shape, 13);
  const std::int64_t half = dice.coin() ? turning_dim() / 16 * 8 : 8;
  std::vector<double> of_cos, of_sin;
  for (std::int64_t i = 0; i < longest * half; ++i) {
    const double angle =
        static_cast<double>(i / half) / std::pow(100.0, static_cast<double>(i % half) / static_cast<double>(half));
    of_cos.push_back(std::cos(angle)), of_sin.push_back(std::sin(angle));
  }
  const DType of_table = dice.one_of({DType::f32, DType::f16, DType::bf16});
  inputs[cosines] = HostTensor::from_doubles(of_table, {longest, half}, of_cos.data(), of_cos.size());
  inputs[sines] = HostTensor::from_doubles(of_table, {longest, half}, of_sin.data(), of_sin.size());
  if (!has_positions) return;
  std::vector<std::int64_t> of_tokens;
  for (std::int64_t i = 0; i < tokens; ++i) of_tokens.push_back(dice.up_to(longest + 2) - 1);
  inputs[positions] = whole_numbers(dice.one_of({DType::i32, DType::i64}), of_tokens);
}

// Where two tensors of the same shape are apart: bits may differ by what one rounding of a sum of two products gives,
// where anything turns, and else not at all.
struct AppendDifference {
  std::int64_t elements = 0;  // that are further apart
  std::int64_t first = -1;
};
inline AppendDifference difference(const HostTensor& found, const HostTensor& expected, bool turns) {
  AppendDifference difference;
  const double rounding = found.dtype() == DType::f16 ? 0x1p-10 : 0x1p-7;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.element_count()); ++i) {
    const auto bits = [i](const HostTensor& tensor) { return static_cast<const std::uint16_t*>(tensor.data())[i]; };
    if (bits(found) == bits(expected)) continue;
    const double a = load_element(found.data(), found.dtype(), i), b = load_element(expected.data(), found.dtype(), i);
    if (turns && std::abs(a - b) <= rounding * std::max(std::abs(b), 0x1p-6)) continue;
    if (difference.elements++ == 0) difference.first = i;
  }
  return difference;
}

}  // namespace flashjit::tests
