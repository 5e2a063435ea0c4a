// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/option_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/arguments.h"
#include "runtime/support/byte_count.h"
#include "runtime/support/ceil_quotient.h"

namespace flashjit::runtime {
namespace {

constexpr std::uint64_t kSeedOfBias = 4, kSeedOfRotary = 6;

// That of ALiBi's paper.
double slope_of(std::int64_t head, std::int64_t heads) {
  return std::exp2(-8 * static_cast<double>(head + 1) / static_cast<double>(heads));
}

// From -1.5 to 1.5, where scores are; neighbours differ.
double sink_of(std::int64_t head, std::int64_t /*heads*/) { return static_cast<double>(head * 5 % 13 - 6) / 4; }

// Bits that no two numbers share.
std::uint64_t mix(std::uint64_t number) noexcept {
  number = (number ^ number >> 32) * 0xd6e8feb86659fd93u;
  number = (number ^ number >> 32) * 0xd6e8feb86659fd93u;
  return number ^ number >> 32;
}

using TensorOption = std::optional<Tensor> AttentionOptions::*;

OptionTensor tensor_of_heads(TensorOption option, const CallShape& shape,
                             double (*number)(std::int64_t head, std::int64_t heads)) {
  return make_packed(option, DType::f32, {shape.num_heads_q},
                     [&](std::int64_t head) { return number(head, shape.num_heads_q); });
}

// [batch, num_heads_q, seqlen_q, seqlen_kv]. A large one is the same for all heads, and its rows begin closer together
// than they are long, in memory that no cache of today's GPUs holds beside k and v.
OptionTensor tensor_of_scores(TensorOption option, const CallShape& shape,
                              const std::function<HostTensor(std::int64_t count)>& make) {
  constexpr std::int64_t kMostElements = 1 << 23;
  const Dims whole{shape.batch, shape.num_heads_q, shape.seqlen_q, shape.seqlen_kv};
  if (const std::int64_t count = element_count(DType::f32, whole); count <= kMostElements)
    return {option, make(count), whole, packed_strides(whole)};
  const std::int64_t rows = shape.seqlen_q, keys = shape.seqlen_kv;
  const std::int64_t room = std::max<std::int64_t>(1, (kMostElements - keys) / std::max<std::int64_t>(1, rows - 1));
  const std::int64_t step = std::min(keys, room), count = (rows - 1) * step + keys;
  return {option, make(count), {1, 1, rows, keys}, {count, count, step, 1}};
}

OptionTensor make_bias(const Problem& problem, const CallShape& shape) {
  constexpr std::int64_t kHiddenStep = 97;
  const DType dtype = problem.bias->captures.front().dtype;
  return tensor_of_scores(&AttentionOptions::bias, shape, [&](std::int64_t count) {
    HostTensor values = HostTensor::random_normal(dtype, {count}, kSeedOfBias);
    for (std::int64_t i = 0; i < count; i += kHiddenStep)
      store_element(values.data(), dtype, i, -std::numeric_limits<double>::infinity());
    return values;
  });
}

// Three of four keys, and of some rows none.
OptionTensor make_boolean_mask(TensorOption option, const CallShape& shape) {
  constexpr std::int64_t kEmptyRowStep = 23;
  return tensor_of_scores(option, shape, [&](std::int64_t count) {
    HostTensor shown(DType::boolean, {count});
    for (std::int64_t i = 0; i < count; ++i) {
      const bool in_empty_row = i / shape.seqlen_kv % kEmptyRowStep == 1;
      store_element(shown.data(), DType::boolean, i, !in_empty_row && mix(static_cast<std::uint64_t>(i)) % 4 != 0);
    }
    return shown;
  });
}

// Runs of one document, of which there is more than one of each where there are few queries.
OptionTensor make_documents(const CallShape& shape) {
  constexpr std::int64_t kDocuments = 4;
  const std::int64_t run = shape.seqlen_kv / 6 + 3;
  return make_packed(&AttentionOptions::documents, DType::i32, {1, shape.seqlen_kv},
                     [&](std::int64_t key) { return static_cast<double>(key / run % kDocuments); });
}

OptionTensor make_prefix(const CallShape& shape) {
  return make_packed(&AttentionOptions::prefix, DType::i32, {shape.batch}, [&](std::int64_t entry) {
    const std::int64_t lengths[] = {shape.seqlen_kv / 3, 0, shape.seqlen_kv, -1};
    return static_cast<double>(lengths[entry % 4]);
  });
}

// For each token and head, near 1.
OptionTensor make_scales(TensorOption option, const CallShape& shape) {
  return make_packed(option, DType::f32, {shape.batch, shape.seqlen_kv, shape.num_heads_kv},
                     [](std::int64_t i) { return 0.75 + static_cast<double>(i * 5 % 16) / 32; });
}

// For each block of rows and head, near 1; of queries the same for all of a head, some of which may be checked alone.
OptionTensor make_block_scales(TensorOption option, const CallShape& shape) {
  const bool of_queries = option == &AttentionOptions::q_scale;
  const std::int64_t rows = of_queries ? shape.seqlen_q : shape.seqlen_kv;
  const std::int64_t blocks = ceil_quotient(rows, std::int64_t{generator::kRowsOfScale});
  return make_packed(
      option, DType::f32, {shape.batch, of_queries ? shape.num_heads_q : shape.num_heads_kv, blocks},
      [&](std::int64_t i) { return 0.75 + static_cast<double>((of_queries ? i / blocks : i) * 5 % 16) / 32; });
}

// The columns of keys that v does not have. Those of a large call are the same again and again: numbers of so many.
OptionTensor make_k_rotary(const Problem& problem, const CallShape& shape) {
  constexpr std::int64_t kNumbers = (1 << 16) - 1;
  const HostTensor numbers = HostTensor::random_normal(problem.dtype, {kNumbers}, kSeedOfRotary);
  return make_packed(&AttentionOptions::k_rotary, problem.dtype,
                     {shape.batch, shape.seqlen_kv, shape.num_heads_kv, problem.head_dim - problem.head_dim_v},
                     [&](std::int64_t i) { return load_element(numbers.data(), problem.dtype, i % kNumbers); });
}

constexpr std::int64_t kWordTokens = 64;  // bits

// Tokens of one word, of row i of a tree. The last rows, which are those that may be checked alone, see all tokens
// before them, as rows of a smaller tree do.
std::uint64_t tree_word(std::int64_t tokens, std::int64_t i, std::int64_t word) noexcept {
  const std::int64_t first = word * kWordTokens, first_last = std::max<std::int64_t>(0, tokens - kMostCheckedRows);
  std::uint64_t bits = mix(static_cast<std::uint64_t>(i * tokens + word));
  for (std::int64_t bit = 0; bit < kWordTokens; ++bit)
    if (first + bit == i || (i >= first_last && first + bit < first_last)) bits |= std::uint64_t{1} << bit;
  return bits;
}

}  // namespace

void OptionTensor::put_into(AttentionOptions& options, const void* place) const {
  if (option)
    options.*option = in(place);
  else if (function == generator::FunctionKind::score)
    options.score->set({capture, in(place)});
  else
    options.mask->set({capture, in(place)});
}

std::int64_t element_count(DType dtype, const Dims& shape) {
  return static_cast<std::int64_t>(byte_count("shape", dtype, shape) / size_of(dtype));
}

OptionTensor make_packed(TensorOption option, DType dtype, const Dims& shape,
                         const std::function<double(std::int64_t index)>& value) {
  OptionTensor tensor{option, HostTensor(dtype, shape), shape, packed_strides(shape)};
  for (std::int64_t i = 0; i < element_count(dtype, shape); ++i)
    store_element(tensor.memory.data(), dtype, i, value(i));
  return tensor;
}

OptionTensor make_tree(std::int64_t tokens, std::int64_t rows) {
  const Dims shape{1, rows, (rows + kWordTokens - 1) / kWordTokens};
  OptionTensor tree{&AttentionOptions::tree, HostTensor(DType::i64, shape), shape, packed_strides(shape)};
  auto* const words = static_cast<std::uint64_t*>(tree.memory.data());
  const std::int64_t first = tokens - rows;
  for (std::int64_t i = 0; i < rows * shape[2]; ++i) {
    const std::int64_t row = first + i / shape[2], at = first + i % shape[2] * kWordTokens, shift = at % kWordTokens;
    words[i] = tree_word(tokens, row, at / kWordTokens) >> shift;
    if (shift != 0) words[i] |= tree_word(tokens, row, at / kWordTokens + 1) << (kWordTokens - shift);
  }
  return tree;
}

std::vector<OptionTensor> make_option_tensors(const Problem& problem, const CallShape& shape) {
  std::vector<OptionTensor> tensors;
  if (problem.alibi) tensors.push_back(tensor_of_heads(&AttentionOptions::alibi_slopes, shape, slope_of));
  if (problem.sinks) tensors.push_back(tensor_of_heads(&AttentionOptions::sinks, shape, sink_of));
  if (problem.bias) tensors.push_back(make_bias(problem, shape));
  if (problem.boolean_mask) tensors.push_back(make_boolean_mask(&AttentionOptions::boolean_mask, shape));
  if (problem.documents) tensors.push_back(make_documents(shape));
  if (problem.prefix) tensors.push_back(make_prefix(shape));
  if (problem.tree) tensors.push_back(make_tree(shape.seqlen_q, shape.seqlen_q));
  if (problem.dropout_mask) tensors.push_back(make_boolean_mask(&AttentionOptions::dropout_mask, shape));
  if (problem.k_rotary) tensors.push_back(make_k_rotary(problem, shape));
  if (problem.token_scales)
    for (const TensorOption option : {&AttentionOptions::k_scale, &AttentionOptions::v_scale})
      tensors.push_back(make_scales(option, shape));
  if (problem.block_scales)
    for (const TensorOption option :
         {&AttentionOptions::q_scale, &AttentionOptions::k_scale, &AttentionOptions::v_scale})
      tensors.push_back(make_block_scales(option, shape));
  return tensors;
}

}  // namespace flashjit::runtime
