// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuning_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/support/byte_count.h"

namespace flashjit::runtime {
namespace {

enum Seed : std::uint64_t { seed_of_q = 1, seed_of_k, seed_of_v };

// The first has several tiles of any height and several blocks of any width; the second shares a tile among heads; of
// the third, under a causal mask, most queries see no key; in the fourth maxima jump, from whichever end keys are
// visited, by more than a lazy maximum puts up with.
constexpr CallShape kCheckShapes[] = {
    {.batch = 1, .seqlen_q = 300, .seqlen_kv = 713, .num_heads_q = 4, .num_heads_kv = 2},
    {.batch = 3, .seqlen_q = 3, .seqlen_kv = 333, .num_heads_q = 8, .num_heads_kv = 2},
    {.batch = 2, .seqlen_q = 201, .seqlen_kv = 70, .num_heads_q = 2, .num_heads_kv = 2},
};
constexpr CallShape kJumpingShape{.batch = 1, .seqlen_q = 260, .seqlen_kv = 840, .num_heads_q = 2, .num_heads_kv = 1};
constexpr double kJump = 8;     // a power of two: no number is rounded
constexpr float kSoftcap = 20;  // which bends the scores that jumped, and leaves them a jump

constexpr std::int64_t kBlockElements = (1 << 18) - 1;
constexpr std::int64_t kMostCheckedRows = 16;
constexpr std::int64_t kMostCheckedKeys = 1 << 17;  // what the reference does in about a second

std::int64_t element_count(DType dtype, const Dims& shape) {
  return static_cast<std::int64_t>(byte_count("shape", dtype, shape) / size_of(dtype));
}

Expected expect(const HostTensor& q, const HostTensor& k, const HostTensor& v, const AttentionOptions& options) {
  return {reference::attention(q.view(), k.view(), v.view(), options),
          reference::attention_in_low_precision(q.view(), k.view(), v.view(), options)};
}

// Two-sided: one that ended at the query's own key would be causal.
Window window_of(std::int64_t keys, bool causal) {
  return causal ? Window{keys - 1, -1} : Window{keys / 2, std::max<std::int64_t>(1, (keys - 1) / 2)};
}

// Of a call for the problem; keys: that a query sees, if there is a window or there are chunks.
AttentionOptions options_of(const Problem& problem, std::int64_t keys) {
  AttentionOptions options;
  options.causal = problem.causal;
  if (problem.softcap) options.softcap = kSoftcap;
  if (problem.window) options.window = window_of(keys, problem.causal);
  // Beside a window so long that each hides keys that the other one shows.
  if (problem.chunk) options.chunk = problem.window ? 2 * keys : keys;
  return options;
}

// That of ALiBi's paper.
double slope_of(std::int64_t head, std::int64_t heads) {
  return std::exp2(-8 * static_cast<double>(head + 1) / static_cast<double>(heads));
}

// From -1.5 to 1.5, where scores are; neighbours differ.
double sink_of(std::int64_t head, std::int64_t /*heads*/) { return static_cast<double>(head * 5 % 13 - 6) / 4; }

std::vector<HeadNumbers> numbers_of_heads(const Problem& problem, const CallShape& shape) {
  const auto for_each_head = [&](double (*number)(std::int64_t head, std::int64_t heads)) {
    HostTensor numbers(DType::f32, TensorShapes(problem, shape).of_heads);
    for (std::int64_t head = 0; head < shape.num_heads_q; ++head)
      store_element(numbers.data(), DType::f32, head, number(head, shape.num_heads_q));
    return numbers;
  };
  std::vector<HeadNumbers> of_heads;
  if (problem.alibi) of_heads.push_back({&AttentionOptions::alibi_slopes, for_each_head(slope_of)});
  if (problem.sinks) of_heads.push_back({&AttentionOptions::sinks, for_each_head(sink_of)});
  return of_heads;
}

Tensor last_of(const Tensor& of_heads) {
  return {static_cast<float*>(of_heads.data) + of_heads.shape[0] - 1, DType::f32, {1}};
}

// Queries that move along the keys with their window, or from chunk to chunk.
CallShape with_all_keys(const Problem& problem, CallShape shape) {
  if (problem.window || problem.chunk) shape.seqlen_kv = std::max(shape.seqlen_q, shape.seqlen_kv);
  return shape;
}

// The middle third of the rows.
void enlarge_middle(HostTensor& k) {
  const auto row = static_cast<std::int64_t>(k.element_count()) / k.shape()[1], rows = k.shape()[1];
  for (std::int64_t i = rows / 3 * row; i < 2 * rows / 3 * row; ++i)
    store_element(k.data(), k.dtype(), i, kJump * load_element(k.data(), k.dtype(), i));
}

}  // namespace

AttentionOptions TuningCall::options_on_host() const {
  AttentionOptions complete = options;
  for (const HeadNumbers& numbers : of_heads) complete.*numbers.option = numbers.values.view();
  return complete;
}

CheckCase::CheckCase(const Problem& problem, const CallShape& given)
    : TuningCall{given, options_of(problem, given.seqlen_kv / 5 + 7), numbers_of_heads(problem, given)} {
  const TensorShapes shapes(problem, shape);
  q = HostTensor::random_normal(problem.dtype, shapes.q, seed_of_q);
  k = HostTensor::random_normal(problem.dtype, shapes.k, seed_of_k);
  v = HostTensor::random_normal(problem.dtype, shapes.v, seed_of_v);
}

Expected CheckCase::expected() const { return expect(q, k, v, options_on_host()); }

std::vector<CheckCase> make_check_cases(const Problem& problem) {
  std::vector<CheckCase> cases;
  for (const CallShape& shape : kCheckShapes) cases.emplace_back(problem, shape);
  enlarge_middle(cases.emplace_back(problem, kJumpingShape).k);
  return cases;
}

RepeatedNormal::RepeatedNormal(DType dtype, const Dims& shape, std::uint64_t seed)
    : shape_(shape),
      block_(HostTensor::random_normal(dtype, {std::min(element_count(dtype, shape), kBlockElements)}, seed)) {}

HostTensor RepeatedNormal::rows(std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count) const {
  const std::int64_t seqlen = shape_[1], heads = shape_[2], columns = shape_[3];
  const auto block = static_cast<std::int64_t>(block_.element_count());
  const std::size_t size = size_of(block_.dtype());
  HostTensor rows(block_.dtype(), {1, count, 1, columns});
  const auto* const from = static_cast<const unsigned char*>(block_.data());
  auto* const to = static_cast<unsigned char*>(rows.data());
  for (std::int64_t i = 0; i < count * columns; ++i) {
    const std::int64_t row = (batch * seqlen + first + i / columns) * heads + head;
    const std::int64_t source = (row * columns + i % columns) % block;
    std::memcpy(to + static_cast<std::size_t>(i) * size, from + static_cast<std::size_t>(source) * size, size);
  }
  return rows;
}

TimedCase::TimedCase(const Problem& problem, const CallShape& given)
    : TuningCall{with_all_keys(problem, given), {}, {}},
      q(problem.dtype, TensorShapes(problem, shape).q, seed_of_q),
      k(problem.dtype, TensorShapes(problem, shape).k, seed_of_k),
      v(problem.dtype, TensorShapes(problem, shape).v, seed_of_v) {
  // Now that the sizes are those of tensors that memory may hold.
  options = options_of(problem, given.seqlen_kv);
  of_heads = numbers_of_heads(problem, shape);
}

std::int64_t TimedCase::checked_rows() const noexcept {
  return shape.seqlen_kv <= kMostCheckedKeys ? std::min(shape.seqlen_q, kMostCheckedRows) : 0;
}

// Masks are aligned with the last query, so that the last rows alone have the same ones.
Expected TimedCase::expected() const {
  const std::int64_t batch = shape.batch - 1, head = shape.num_heads_kv - 1;
  const std::int64_t rows = checked_rows(), keys = rows > 0 ? shape.seqlen_kv : 0;
  AttentionOptions of_head = options_on_host();
  for (const HeadNumbers& numbers : of_heads) of_head.*numbers.option = last_of(numbers.values.view());
  return expect(q.rows(batch, shape.num_heads_q - 1, shape.seqlen_q - rows, rows), k.rows(batch, head, 0, keys),
                v.rows(batch, head, 0, keys), of_head);
}

}  // namespace flashjit::runtime
