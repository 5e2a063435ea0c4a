// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/case_tensors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "cli/verify/dice.h"

namespace flashjit::cli {
namespace {

using Option = std::optional<Tensor> AttentionOptions::*;

// That of ALiBi's paper.
double slope_of(std::int64_t head, std::int64_t heads) {
  return std::exp2(-8 * static_cast<double>(head + 1) / static_cast<double>(heads));
}

// From -1.5 to 1.5, where scores are; neighbours differ.
double sink_of(std::int64_t head, std::int64_t /*heads*/) { return static_cast<double>(head * 5 % 13 - 6) / 4; }

// In each batch entry they begin with another head: they are not those of a neighbour.
HostTensor for_each_head(const CallShape& shape, double (*number)(std::int64_t head, std::int64_t heads)) {
  const std::int64_t heads = shape.num_heads_q;
  HostTensor numbers(DType::f32, {shape.batch, heads});
  for (std::int64_t i = 0; i < shape.batch * heads; ++i)
    store_element(numbers.data(), DType::f32, i, number((i / heads + i) % heads, heads));
  return numbers;
}

// Only problem_of knows what a problem has of a tensor.
DType dtype_of_bias(const Problem& problem) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    AttentionOptions options;
    options.bias = Tensor(nullptr, dtype, {});
    if (problem_of(problem.dtype, problem.head_dim, problem.head_dim_v, options).bias == problem.bias) return dtype;
  }
  return DType::f32;
}

class RandomTensors {
 public:
  RandomTensors(const CallShape& shape, std::uint64_t seed)
      : shape_(shape), dice_((seed << 32) + static_cast<std::uint64_t>(shape.seqlen_q * 8191 + shape.seqlen_kv)) {}

  // Normal numbers, and some that hide their key.
  HostTensor bias(DType dtype) {
    HostTensor values = HostTensor::random_normal(dtype, dims_of_scores(), dice_.bits());
    for (std::size_t i = 0; i < values.element_count(); ++i)
      if (dice_.one_in(40)) set(values, i, -std::numeric_limits<double>::infinity());
    return values;
  }

  // Some rows show no key, and some keys are hidden from all.
  HostTensor boolean_mask() {
    HostTensor shown(DType::boolean, dims_of_scores());
    const auto keys = static_cast<std::size_t>(shape_.seqlen_kv);
    for (std::size_t row = 0; keys > 0 && row < shown.element_count() / keys; ++row) {
      const bool is_empty = dice_.one_in(8);
      for (std::size_t key = 0; key < keys; ++key)
        set(shown, row * keys + key, !is_empty && key % 50 != 7 && !dice_.one_in(4));
    }
    return shown;
  }

  // Two of three, and of some rows none.
  HostTensor dropout_mask() {
    HostTensor kept(DType::boolean, dims_of_scores());
    const auto keys = static_cast<std::size_t>(shape_.seqlen_kv);
    for (std::size_t row = 0; keys > 0 && row < kept.element_count() / keys; ++row) {
      const bool is_empty = dice_.one_in(10);
      for (std::size_t key = 0; key < keys; ++key) set(kept, row * keys + key, !is_empty && !dice_.one_in(3));
    }
    return kept;
  }

  // By rising numbers; with one batch entry for all, in no order.
  HostTensor documents() {
    HostTensor numbers(DType::i32, {or_one(shape_.batch), shape_.seqlen_kv});
    const bool is_sorted = shape_.batch == 1 || numbers.shape()[0] > 1;
    std::int64_t document = -3;
    for (std::size_t i = 0; i < numbers.element_count(); ++i) {
      const bool is_middle = static_cast<std::int64_t>(i) % shape_.seqlen_kv == shape_.seqlen_kv / 2;
      if (is_middle || dice_.one_in(40)) ++document;
      set(numbers, i, static_cast<double>(is_sorted ? document : dice_.from_to(-1, 1)));
    }
    return numbers;
  }

  // None, all, less than none, and a part.
  HostTensor prefix() {
    HostTensor lengths(DType::i32, {shape_.batch});
    const std::int64_t part = dice_.from_to(0, shape_.seqlen_kv), all = shape_.seqlen_kv;
    const std::int64_t of_entries[] = {shape_.batch == 1 ? part : 0, part, all, -5};
    for (std::size_t i = 0; i < lengths.element_count(); ++i) set(lengths, i, static_cast<double>(of_entries[i % 4]));
    return lengths;
  }

  // None, all and any between.
  HostTensor lengths(std::int64_t most) {
    HostTensor lengths(DType::i32, {shape_.batch});
    for (std::size_t i = 0; i < lengths.element_count(); ++i)
      set(lengths, i, static_cast<double>(dice_.one_in(5) ? most : dice_.one_in(8) ? 0 : dice_.from_to(0, most)));
    return lengths;
  }

  // Queries see themselves, and any others.
  HostTensor tree() {
    constexpr std::int64_t kWordBits = 64;
    HostTensor rows(DType::i64, {or_one(shape_.batch), shape_.seqlen_q, (shape_.seqlen_q + kWordBits - 1) / kWordBits});
    const std::int64_t words = rows.shape()[2];
    for (std::size_t i = 0; i < rows.element_count(); ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i), query = at / words % shape_.seqlen_q;
      std::uint64_t word = dice_.bits();
      if (query / kWordBits == at % words) word |= std::uint64_t{1} << query % kWordBits;
      std::memcpy(static_cast<std::uint64_t*>(rows.data()) + i, &word, sizeof(word));  // no double holds it
    }
    return rows;
  }

 private:
  static void set(HostTensor& tensor, std::size_t index, double value) {
    store_element(tensor.data(), tensor.dtype(), static_cast<std::int64_t>(index), value);
  }
  // One often stands for all.
  std::int64_t or_one(std::int64_t size) { return dice_.one_in(2) ? 1 : size; }
  Dims dims_of_scores() {
    return {or_one(shape_.batch), or_one(shape_.num_heads_q), dice_.one_in(4) ? 1 : shape_.seqlen_q, shape_.seqlen_kv};
  }

  CallShape shape_;
  Dice dice_;
};

}  // namespace

std::vector<OptionTensor> case_tensors(const Problem& problem, const CallShape& shape, std::uint64_t seed) {
  std::vector<OptionTensor> tensors;
  RandomTensors random(shape, seed);
  if (problem.alibi) tensors.push_back({&AttentionOptions::alibi_slopes, for_each_head(shape, slope_of)});
  if (problem.sinks) tensors.push_back({&AttentionOptions::sinks, for_each_head(shape, sink_of)});
  if (problem.bias) tensors.push_back({&AttentionOptions::bias, random.bias(dtype_of_bias(problem))});
  if (problem.boolean_mask) tensors.push_back({&AttentionOptions::boolean_mask, random.boolean_mask()});
  if (problem.documents) tensors.push_back({&AttentionOptions::documents, random.documents()});
  if (problem.prefix) tensors.push_back({&AttentionOptions::prefix, random.prefix()});
  if (problem.tree) tensors.push_back({&AttentionOptions::tree, random.tree()});
  if (problem.dropout_mask) tensors.push_back({&AttentionOptions::dropout_mask, random.dropout_mask()});
  if (problem.ragged) {
    tensors.push_back({&AttentionOptions::seqused_q, random.lengths(shape.seqlen_q)});
    tensors.push_back({&AttentionOptions::seqused_kv, random.lengths(shape.seqlen_kv)});
    if (!problem.paged) tensors.push_back({&AttentionOptions::leftpad_kv, random.lengths(shape.seqlen_kv / 8)});
  }
  return tensors;
}

}  // namespace flashjit::cli
