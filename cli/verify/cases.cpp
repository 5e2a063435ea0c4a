// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/cases.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/io/transposed_values.h"
#include "cli/verify/case_pages.h"
#include "cli/verify/case_scales.h"
#include "cli/verify/case_tensors.h"

namespace flashjit::cli {
namespace {

constexpr std::int64_t kPageSizes[] = {16, 24, 64, 8, 256, 40, 128};  // which all families take

constexpr double kWrittenUnused = 1e30;  // near nothing that a reference has

std::int64_t length_at(const HostTensor& lengths, std::int64_t batch) {
  return static_cast<std::int64_t>(load_element(lengths.data(), lengths.dtype(), batch));
}

// What has rows of keys: k, v, what of keys stands apart, and scales of each of these.
std::vector<HostTensor*> of_keys(CaseInputs& inputs) {
  std::vector<HostTensor*> tensors{&inputs.k, &inputs.v};
  for (OptionTensor& tensor : inputs.tensors)
    if (tensor.option == &AttentionOptions::k_rotary ||
        (tensor.values.shape().size() == 3 &&
         (tensor.option == &AttentionOptions::k_scale || tensor.option == &AttentionOptions::v_scale)))
      tensors.push_back(&tensor.values);
  return tensors;
}

// With as many keys as there were before, which is fewer than pages have room for.
void move_into_pages(CaseInputs& inputs, std::uint64_t seed) {
  inputs.options.max_seqlen_kv = inputs.k.shape()[1];
  for (const OptionTensor& tensor : inputs.tensors) {
    if (tensor.option != &AttentionOptions::seqused_kv) continue;
    const PageOrder order(inputs.k.shape(), tensor.values, kPageSizes[seed % std::size(kPageSizes)], seed);
    for (HostTensor* rows : of_keys(inputs)) *rows = order.moved(*rows);
    inputs.tensors.push_back({&AttentionOptions::page_table, order.table()});
    return;
  }
}

// Columns from first on, so many.
HostTensor columns_of(const HostTensor& rows, std::int64_t first, std::int64_t count) {
  Dims shape = rows.shape();
  const std::int64_t width = shape[3];
  shape[3] = count;
  HostTensor columns(rows.dtype(), shape);
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(columns.element_count()); ++at)
    store_element(columns.data(), rows.dtype(), at,
                  load_element(rows.data(), rows.dtype(), at / count * width + first + at % count));
  return columns;
}

// The columns of keys that v does not have, in a tensor of their own.
void move_rotary_apart(CaseInputs& inputs, const Problem& problem) {
  HostTensor rotary = columns_of(inputs.k, problem.head_dim_v, problem.head_dim - problem.head_dim_v);
  inputs.k = columns_of(inputs.k, 0, problem.head_dim_v);
  inputs.tensors.push_back({&AttentionOptions::k_rotary, std::move(rotary)});
}

// Of usual outputs, of such that are nearly too small, and of some that are too large.
HostTensor random_out_scale(std::uint64_t seed) {
  constexpr double kScales[] = {1.25, 0.002, 0.01, 0.05};
  return HostTensor::from_doubles(DType::f32, {1}, &kScales[seed % std::size(kScales)], 1);
}

// Of each batch entry the rows behind so many.
void poison_from(const HostTensor& lengths, HostTensor& rows) {
  const Dims& shape = rows.shape();
  const std::int64_t row = shape.size() == 3 ? shape[2] : shape[2] * shape[3], entry = shape[1] * row;
  for (std::int64_t batch = 0; batch < shape[0]; ++batch)
    for (std::int64_t at = batch * entry + length_at(lengths, batch) * row; at < (batch + 1) * entry; ++at)
      store_element(rows.data(), rows.dtype(), at, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

const std::vector<CaseShape>& verify_shapes() {
  static const std::vector<CaseShape> shapes = [] {
    std::vector<CaseShape> list = {
        {1, 1, 1, 1, 1},       // the smallest
        {2, 1, 77, 4, 2},      // one query, grouped heads
        {1, 5, 0, 2, 1},       // no key at all
        {1, 0, 64, 1, 1},      // no query at all
        {1, 64, 64, 1, 1},     // whole blocks
        {2, 129, 257, 4, 4},   // one beyond whole blocks
        {1, 257, 129, 8, 2},   // causal: the first rows see no key
        {1, 512, 512, 2, 1},   // several steps of every pipeline
        {1, 127, 1023, 6, 1},  // one short of whole blocks, one key head
        {1, 3, 200, 16, 1},    // groups of 16, 8 and 3 heads, whose queries share tiles where that helps
        {2, 19, 150, 8, 1},   {1, 45, 90, 6, 2}, {2, 130, 200, 4, 2, Scores::random, true},
    };
    for (const Scores scores : kHardScores) list.push_back({1, 130, 420, 4, 2, scores});
    return list;
  }();
  return shapes;
}

const std::vector<CaseShape>& emulated_shapes() {
  static const std::vector<CaseShape> shapes = {
      {1, 1, 1, 1, 1},                            // the smallest
      {1, 5, 0, 2, 1},                            // no key at all
      {2, 19, 150, 4, 1},                         // few queries, whose heads share tiles where that helps
      {1, 129, 257, 2, 2},                        // one beyond whole blocks
      {1, 257, 129, 4, 2},                        // causal: the first rows see no key
      {1, 40, 700, 2, 1},                         // several turns of every pipeline
      {2, 130, 200, 4, 2, Scores::random, true},  // more tiles than a persistent kernel has blocks
      {1, 130, 420, 2, 1, Scores::jumps},         // maxima that grow
  };
  return shapes;
}

std::vector<CaseShape> shapes_for(const Problem& problem, const std::vector<CaseShape>& shapes) {
  std::vector<CaseShape> chosen;
  std::copy_if(shapes.begin(), shapes.end(), std::back_inserter(chosen), [&](const CaseShape& shape) {
    return (!problem.tree || shape.seqlen_q <= shape.seqlen_kv) && (!problem.e4m3 || shape.seqlen_kv > 0) &&
           (!problem.latent || !has_far_keys(shape.scores));
  });
  return chosen;
}

CallShape call_shape(const CaseShape& shape) {
  return {shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.heads_q, shape.heads_kv};
}

std::string to_string(const CaseShape& shape) {
  std::string text =
      fmt::format("b{} q{} kv{} h{}/{}", shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.heads_q, shape.heads_kv);
  if (shape.scores != Scores::random) text += fmt::format(" {}", to_string(shape.scores));
  if (shape.heads_first) text += " heads-first";
  return text;
}

References references_by(Engine& engine) {
  return {[&engine](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
            return engine.reference(q, k, v, options);
          },
          [&engine](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
            return engine.reference_in_low_precision(q, k, v, options);
          }};
}

CaseInputs case_inputs(const Problem& problem, const CaseShape& shape, const AttentionOptions& options,
                       std::uint64_t seed) {
  const Dims q_shape{shape.batch, shape.seqlen_q, shape.heads_q, problem.head_dim};
  const Dims k_shape{shape.batch, shape.seqlen_kv, shape.heads_kv, problem.head_dim};
  const Dims v_shape{shape.batch, shape.seqlen_kv, shape.heads_kv, problem.head_dim_v};
  CaseInputs inputs{HostTensor::random_normal(problem.dtype, q_shape, seed, kOutlierRate),
                    HostTensor::random_normal(problem.dtype, k_shape, seed + 1, kOutlierRate),
                    HostTensor::random_normal(problem.dtype, v_shape, seed + 2, kOutlierRate), options,
                    case_tensors(problem, call_shape(shape), seed)};
  shape_scores(shape.scores, inputs.q, inputs.k);
  if (problem.k_rotary) move_rotary_apart(inputs, problem);
  if (problem.latent) inputs.v = columns_of(inputs.k, 0, problem.head_dim_v), inputs.latent = true;
  inputs.values_transposed = problem.values_transposed;
  if (problem.e4m3_queries)
    store_in_8_bits(problem, inputs.q, inputs.k, inputs.v, seed, inputs.tensors);
  else if (problem.e4m3)
    store_in_8_bits(problem, inputs.k, inputs.v, seed, inputs.tensors);
  if (problem.e4m3_queries) inputs.options.out_dtype = problem.out_e4m3 ? DType::e4m3 : problem.dtype;
  if (problem.out_e4m3) inputs.tensors.push_back({&AttentionOptions::out_scale, random_out_scale(seed)});
  if (problem.fast_sums) inputs.options.accumulate = Accumulate::fast;
  inputs.options.causal = problem.causal;
  for (const OptionTensor& tensor : inputs.tensors) {
    if (tensor.option == &AttentionOptions::seqused_q) poison_from(tensor.values, inputs.q);
    if (tensor.option == &AttentionOptions::seqused_kv)
      for (HostTensor* values : of_keys(inputs)) poison_from(tensor.values, *values);
  }
  if (problem.paged) move_into_pages(inputs, seed);
  return inputs;
}

VerifyCase::VerifyCase(const CaseShape& shape, const CaseInputs& inputs, const Texts& texts, int device,
                       const References& references)
    : shape_(shape),
      layout_{shape.heads_first},
      latent_(inputs.latent),
      values_transposed_(inputs.values_transposed),
      device_(device) {
  const AttentionOptions on_host = texts.on_host(with_tensors(inputs.options, inputs.tensors));
  exact_ = references.exact(inputs.q.view(), inputs.k.view(), inputs.v.view(), on_host);
  low_ = references.low(inputs.q.view(), inputs.k.view(), inputs.v.view(), on_host);
  q_ = layout_.in_memory(inputs.q).to_device(nullptr, device);
  head_dim_ = inputs.k.shape()[3], head_dim_v_ = inputs.v.shape()[3];
  k_ = layout_.in_memory(with_whole_rows(inputs.k)).to_device(nullptr, device);
  if (values_transposed_)
    v_ = with_keys_along_rows(inputs.v).to_device(nullptr, device);
  else if (!latent_)
    v_ = layout_.in_memory(with_whole_rows(inputs.v)).to_device(nullptr, device);
  options_ = with_tensors(inputs.options, inputs.tensors, device, tensors_);
  options_ = texts.on_device(options_, device, tensors_);
  const Dims out_shape{shape.batch, shape.seqlen_q, shape.heads_q, inputs.v.shape()[3]};
  poisoned_out_ = layout_.in_memory(filled_with_nan(inputs.options.out_dtype.value_or(inputs.q.dtype()), out_shape));
  poisoned_lse_ = filled_with_nan(DType::f32, {shape.batch, shape.heads_q, shape.seqlen_q});
  for (const OptionTensor& tensor : inputs.tensors)
    if (tensor.option == &AttentionOptions::seqused_q) queries_ = tensor.values;
}

VerifyCase::VerifyCase(const Problem& problem, const CaseShape& shape, int device, const AttentionOptions& options,
                       const References& references, const Texts& texts)
    : VerifyCase(shape, case_inputs(problem, shape, options, kCaseSeed), texts, device, references) {}

void VerifyCase::make_block_mask(Engine& engine, const CallShape& shape) {
  const DeviceTensor& blocks =
      tensors_.emplace_back(DeviceTensor::allocate(DType::i32, block_mask_dims(shape), nullptr, device_));
  engine.block_mask(options_, shape, blocks);
  options_.block_mask = blocks.view();
}

void VerifyCase::make_block_mask(Engine& engine) { make_block_mask(engine, call_shape(shape_)); }

Tensor VerifyCase::values() const {
  if (values_transposed_) return view_with_keys_along_rows(v_.view(), shape_.seqlen_kv);
  return layout_.view(latent_ ? k_ : v_);
}

CaseOutputs VerifyCase::run(const std::optional<Variant>& variant,
                            const std::function<void(const CaseCall&)>& attention) const {
  const DeviceTensor out_memory = poisoned_out_.to_device(nullptr, device_);
  const DeviceTensor lse_memory = poisoned_lse_.to_device(nullptr, device_);
  CaseCall call{layout_.view(q_), layout_.view(k_), values(), layout_.view(out_memory), options_};
  call.k.shape[3] = head_dim_, call.v.shape[3] = head_dim_v_;
  call.options.variant = variant;
  call.options.lse = lse_memory.view();
  attention(call);
  return {{"out", layout_.in_memory(HostTensor::from_device(out_memory))},
          {"lse", HostTensor::from_device(lse_memory)}};
}

CaseOutputs VerifyCase::run(Engine& engine, const std::optional<Variant>& variant) const {
  return run(variant, [&](const CaseCall& call) { engine.attention(call.q, call.k, call.v, call.out, call.options); });
}

CaseOutputs VerifyCase::emulate(Engine& engine, const std::optional<Variant>& variant, const EmulationOptions& options,
                                emulator::Report& report) const {
  return run(variant, [&](const CaseCall& call) {
    report = engine.emulate(call.q, call.k, call.v, call.out, call.options, options);
  });
}

// Rows of no query become what the reference has there, unless somebody wrote to them.
void VerifyCase::clear_unused(HostTensor& out, HostTensor& lse) const {
  if (queries_.shape().size() == 0) return;
  const std::int64_t rows = shape_.seqlen_q, heads = shape_.heads_q, width = out.shape()[3];
  const auto clear = [](HostTensor& tensor, std::int64_t at, double value) {
    const bool is_written = !std::isnan(load_element(tensor.data(), tensor.dtype(), at));
    store_element(tensor.data(), tensor.dtype(), at, is_written ? kWrittenUnused : value);
  };
  for (std::int64_t batch = 0; batch < shape_.batch; ++batch)
    for (std::int64_t row = length_at(queries_, batch); row < rows; ++row)
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t first = ((batch * rows + row) * heads + head) * width;
        for (std::int64_t at = first; at < first + width; ++at) clear(out, at, 0);
        clear(lse, (batch * heads + head) * rows + row, -std::numeric_limits<double>::infinity());
      }
}

std::string VerifyCase::problem_with(CaseOutputs outputs) const {
  reference::Result exact = exact_;
  HostTensor &out = outputs[0].values, &lse = outputs[1].values;
  clear_unused(out, lse);
  clear_expected_nan(out, lse, exact);
  const std::string of_out = cli::problem_with("out", reference::compare(out, exact, low_));
  return of_out.empty() ? cli::problem_with("lse", reference::compare_lse(lse, exact, low_)) : of_out;
}

}  // namespace flashjit::cli
