// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuning_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "generator/arguments.h"
#include "generator/features.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"
#include "runtime/tuning/stand_in_calls.h"

namespace flashjit::runtime {
namespace {

enum Seed : std::uint64_t { seed_of_q = 1, seed_of_k, seed_of_v, seed_of_dropout = 5 };

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
constexpr double kDropout = 0.1;

constexpr std::int64_t kBlockElements = (1 << 18) - 1;
constexpr std::int64_t kMostCheckedKeys = 1 << 17;  // what the reference does in about a second

// Of rows of a call for the problem.
Expected expect(const HostTensor& q, const HostTensor& k, const HostTensor& v, const AttentionOptions& options,
                const Problem& problem, const RowsInCall& rows) {
  return {
      reference::attention(q.view(), k.view(), v.view(), options, stand_in_hook(problem, rows, false)),
      reference::attention_in_low_precision(q.view(), k.view(), v.view(), options, stand_in_hook(problem, rows, true))};
}

// Two-sided: one that ended at the query's own key would be causal, and beside a prefix none ends.
Window window_of(std::int64_t keys, const Problem& problem) {
  return problem.causal || problem.prefix ? Window{keys - 1, -1}
                                          : Window{keys / 2, std::max<std::int64_t>(1, (keys - 1) / 2)};
}

// Of a call for the problem; keys: that a query sees, if there is a window or there are chunks.
AttentionOptions options_of(const Problem& problem, std::int64_t keys) {
  if (problem.block_mask && !generator::has_part(generator::Slot::predicate, problem))
    reject("problem: must have boolean_mask, documents, tree or mask beside blocks, which are made of them, was {}",
           to_string(problem));
  AttentionOptions options;
  options.causal = problem.causal;
  if (problem.softcap) options.softcap = kSoftcap;
  if (problem.dropout) options.dropout = {kDropout, seed_of_dropout, 0};
  if (problem.window) options.window = window_of(keys, problem);
  // Beside a window so long that each hides keys that the other one shows.
  if (problem.chunk) options.chunk = problem.window ? 2 * keys : keys;
  if (problem.e4m3_queries) options.out_dtype = problem.dtype;
  if (problem.fast_sums) options.accumulate = Accumulate::fast;
  return with_stand_ins(problem, std::move(options));
}

std::vector<OptionTensor> tensors_of(const Problem& problem, const CallShape& shape) {
  std::vector<OptionTensor> tensors = make_option_tensors(problem, shape);
  for (OptionTensor& captured : make_captured_tensors(problem, shape)) tensors.push_back(std::move(captured));
  return tensors;
}

// Those of the dimension's indices that come last. What stands for all stays.
Tensor last_of(Tensor tensor, int dim, std::int64_t count = 1) {
  if (tensor.shape[dim] == 1) return tensor;
  const std::int64_t skipped = (tensor.shape[dim] - count) * tensor.strides[dim];
  tensor.data = static_cast<std::byte*>(tensor.data) + skipped * static_cast<std::int64_t>(size_of(tensor.dtype));
  tensor.shape[dim] = count;
  return tensor;
}

// What random choice leaves of the last rows, as a mask that makes the same choice for them alone.
OptionTensor make_random_mask(const TuningCall& call, std::int64_t rows) {
  const CallShape& shape = call.shape;
  const std::int64_t keys = shape.seqlen_kv, first = shape.seqlen_q - rows;
  return make_packed(&AttentionOptions::dropout_mask, DType::boolean, {1, 1, rows, keys},
                     [&](std::int64_t i) -> double {
                       return keeps(call.options.dropout, shape.num_heads_q, shape.batch - 1, shape.num_heads_q - 1,
                                    first + i / keys, i % keys);
                     });
}

// Of a call with the last rows of the last query head of the last batch entry alone; kept: where to keep what is made
// for it.
AttentionOptions options_of_last(const TuningCall& call, std::int64_t rows, std::vector<OptionTensor>& kept) {
  AttentionOptions options = call.options_on_host();
  for (auto* of_heads : {&options.alibi_slopes, &options.sinks})
    if (*of_heads) *of_heads = last_of(**of_heads, 0);
  for (auto* of_scores : {&options.bias, &options.boolean_mask, &options.dropout_mask})
    if (*of_scores) *of_scores = last_of(last_of(last_of(**of_scores, 0), 1), 2, rows);
  if (options.prefix) options.prefix = last_of(*options.prefix, 0);
  // Those of tokens have heads last, and those of blocks of rows, which stand beside some of queries, before the
  // blocks.
  const int heads = options.q_scale ? 1 : 2;
  for (auto* of_rows : {&options.q_scale, &options.k_scale, &options.v_scale})
    if (*of_rows) *of_rows = last_of(last_of(**of_rows, 0), heads);
  if (options.k_rotary) options.k_rotary = last_of(last_of(*options.k_rotary, 0), 2);
  if (options.q_scale)
    options.q_scale = last_of(*options.q_scale, 2, ceil_quotient(rows, std::int64_t{generator::kRowsOfScale}));
  if (options.tree) options.tree = kept.emplace_back(make_tree(call.shape.seqlen_q, rows)).view();
  if (options.dropout.probability > 0 && !options.dropout_mask) {
    options.dropout_mask = kept.emplace_back(make_random_mask(call, rows)).view();
    options.dropout.probability = 1 - kept_share(options.dropout.probability);
  }
  return options;
}

// The queries of a tree are keys.
CallShape with_keys_of_tree(const Problem& problem, CallShape shape) {
  if (problem.tree) shape.seqlen_kv = std::max(shape.seqlen_q, shape.seqlen_kv);
  return shape;
}

// Queries that move along the keys with their window, or from chunk to chunk.
CallShape with_all_keys(const Problem& problem, CallShape shape) {
  if (problem.window || problem.chunk) shape.seqlen_kv = std::max(shape.seqlen_q, shape.seqlen_kv);
  return with_keys_of_tree(problem, shape);
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
  for (const OptionTensor& tensor : tensors) tensor.put_into(complete, tensor.memory.data());
  return complete;
}

CallShape TuningCall::block_mask_shape() const {
  const std::optional<Tensor> boolean_mask = options_on_host().boolean_mask;
  const std::int64_t batch = boolean_mask ? boolean_mask->shape[0] : 1,
                     heads = boolean_mask ? boolean_mask->shape[1] : 1;
  return {batch, shape.seqlen_q, shape.seqlen_kv, heads, heads};
}

Tensor first_columns(Tensor rows, std::int64_t columns) {
  rows.shape[3] = columns;
  return rows;
}

HostTensor first_columns(const HostTensor& rows, std::int64_t columns) {
  Dims shape = rows.shape();
  const auto width = static_cast<std::size_t>(shape[3]);
  shape[3] = columns;
  HostTensor first(rows.dtype(), shape);
  const std::size_t size = size_of(rows.dtype()), bytes = static_cast<std::size_t>(columns) * size;
  const auto* const from = static_cast<const unsigned char*>(rows.data());
  auto* const to = static_cast<unsigned char*>(first.data());
  for (std::size_t row = 0; row * bytes < first.element_count() * size; ++row)
    std::memcpy(to + row * bytes, from + row * width * size, bytes);
  return first;
}

CheckCase::CheckCase(const Problem& of_problem, const CallShape& given)
    : TuningCall{
          of_problem, with_keys_of_tree(of_problem, given), options_of(of_problem, given.seqlen_kv / 5 + 7), {}} {
  tensors = tensors_of(problem, shape);
  const TensorShapes shapes(problem, shape);
  q = HostTensor::random_normal(q_dtype(problem), shapes.q, seed_of_q);
  k = HostTensor::random_normal(kv_dtype(problem), shapes.k, seed_of_k);
  v = HostTensor::random_normal(kv_dtype(problem), shapes.v, seed_of_v);
}

Expected CheckCase::expected() const {
  return expect(q, k, problem.latent ? first_columns(k, problem.head_dim_v) : v, options_on_host(), problem, {shape});
}

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

TimedCase::TimedCase(const Problem& of_problem, const CallShape& given)
    : TuningCall{of_problem, with_all_keys(of_problem, given), {}, {}},
      q(q_dtype(problem), TensorShapes(problem, shape).q, seed_of_q),
      k(kv_dtype(problem), TensorShapes(problem, shape).k, seed_of_k),
      v(kv_dtype(problem), TensorShapes(problem, shape).v, seed_of_v) {
  // Now that the sizes are those of tensors that memory may hold.
  options = options_of(problem, given.seqlen_kv);
  tensors = tensors_of(problem, shape);
}

std::int64_t TimedCase::checked_rows() const noexcept {
  return shape.seqlen_kv <= kMostCheckedKeys ? std::min(shape.seqlen_q, kMostCheckedRows) : 0;
}

// Masks are aligned with the last query, so that the last rows alone have the same ones; functions are told where these
// stand.
Expected TimedCase::expected() const {
  const std::int64_t batch = shape.batch - 1, head = shape.num_heads_kv - 1, head_q = shape.num_heads_q - 1;
  const std::int64_t rows = checked_rows(), first = shape.seqlen_q - rows, keys = rows > 0 ? shape.seqlen_kv : 0;
  std::vector<OptionTensor> kept;
  const AttentionOptions of_head = options_of_last(*this, rows, kept);
  const HostTensor of_keys = k.rows(batch, head, 0, keys);
  return expect(q.rows(batch, head_q, first, rows), of_keys,
                problem.latent ? first_columns(of_keys, problem.head_dim_v) : v.rows(batch, head, 0, keys), of_head,
                problem, {shape, batch, head_q, first});
}

}  // namespace flashjit::runtime
