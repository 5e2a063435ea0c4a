// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/given_call.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <tuple>
#include <type_traits>
#include <variant>

namespace flashjit::runtime {
namespace {

// What options say by values, and all of the rest but for plan and stream.
template <class Values, class TensorOption, std::size_t kTensors>
struct Parts {
  Values values;
  std::array<TensorOption*, kTensors> tensors;
};

// Named one by one, so that an option that is new has to find its place here.
template <class Options>
auto parts_of(Options& opts) {
  auto& [causal, window, chunk, softmax_scale, softcap, alibi_slopes, sinks, bias, boolean_mask, documents, prefix,
         tree, score, mask, query_offsets, key_offsets, block_mask, dropout, dropout_state, dropout_mask, cu_seqlens_q,
         cu_seqlens_kv, seqused_q, seqused_kv, leftpad_kv, batch_indices_kv, page_table, k_scale, v_scale, k_rotary,
         q_scale, accumulate, out_dtype, out_scale, max_seqlen_q, max_seqlen_kv, fixed_split_size, plan, lse, stream,
         variant] = opts;
  const auto values = std::tie(causal, window, chunk, softmax_scale, softcap, dropout, max_seqlen_q, max_seqlen_kv,
                               fixed_split_size, accumulate, out_dtype, variant);
  const std::array tensors{
      &alibi_slopes, &sinks,         &bias,        &boolean_mask, &documents,     &prefix,
      &tree,         &query_offsets, &key_offsets, &block_mask,   &dropout_state, &dropout_mask,
      &cu_seqlens_q, &cu_seqlens_kv, &seqused_q,   &seqused_kv,   &leftpad_kv,    &batch_indices_kv,
      &page_table,   &k_scale,       &v_scale,     &k_rotary,     &q_scale,       &out_scale,
      &lse};
  return Parts<decltype(values), std::remove_reference_t<decltype(lse)>, tensors.size()>{values, tensors};
}

// Those of the options.
template <class Options, class Visit>
void for_each_function(Options& opts, const Visit& visit) {
  if (opts.score) visit(*opts.score);
  if (opts.mask) visit(*opts.mask);
}

bool same_layout(const Tensor& a, const Tensor& b) noexcept {
  return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

// Of captures of one type. A function may tell -0 from 0.
bool same_number(const Capture& a, const Capture& b) noexcept {
  if (const auto* number = std::get_if<float>(&a.value))
    return std::bit_cast<std::uint32_t>(*number) == std::bit_cast<std::uint32_t>(std::get<float>(b.value));
  const auto* number = std::get_if<std::int32_t>(&a.value);
  return !number || *number == std::get<std::int32_t>(b.value);
}

// The same function where sources are equal, with names and types of captures; tensors that it captures may differ.
template <class Function>
bool same_but_for_tensors(const std::optional<Function>& a, const std::optional<Function>& b) noexcept {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->source() == b->source() &&
         std::equal(a->captures().begin(), a->captures().end(), b->captures().begin(), same_number);
}

}  // namespace

CallTensors::CallTensors(const GivenCall& call) noexcept {
  const auto add = [this](const Tensor& tensor) { items_[static_cast<std::size_t>(count_++)] = &tensor; };
  add(call.q), add(call.k), add(call.v), add(call.out);
  std::uint32_t bit = 1;
  for (const auto* tensor : parts_of(call.opts).tensors) {
    if (*tensor) add(**tensor), options_ |= bit;
    bit *= 2;
  }
  for_each_function(call.opts, [&](const Function& function) {
    for (const Capture& capture : function.captures())
      if (const auto* tensor = std::get_if<Tensor>(&capture.value)) add(*tensor);
  });
}

CallLayout::CallLayout(const GivenCall& call) : opts_(call.opts), values_begin_with_keys_(call.v.data == call.k.data) {
  const CallTensors tensors(call);
  options_ = tensors.options();
  for (int i = 0; i < tensors.size(); ++i) tensors_.push_back(tensors[i]);
}

bool CallLayout::is_of(const GivenCall& call, const CallTensors& tensors) const noexcept {
  if (tensors.options() != options_ || tensors.size() != static_cast<int>(tensors_.size())) return false;
  if ((call.v.data == call.k.data) != values_begin_with_keys_) return false;
  for (int i = 0; i < tensors.size(); ++i)
    if (!same_layout(tensors[i], tensors_[static_cast<std::size_t>(i)])) return false;
  return parts_of(call.opts).values == parts_of(opts_).values && same_but_for_tensors(call.opts.score, opts_.score) &&
         same_but_for_tensors(call.opts.mask, opts_.mask);
}

CallElsewhere::CallElsewhere(const GivenCall& call, const std::vector<std::uintptr_t>& addresses)
    : q(call.q), k(call.k), v(call.v), out(call.out), opts(call.opts) {
  auto next = addresses.begin();
  const auto move = [&](Tensor& tensor) { tensor.data = reinterpret_cast<void*>(*next++); };
  move(q), move(k), move(v), move(out);
  for (auto* tensor : parts_of(opts).tensors)
    if (*tensor) move(**tensor);
  for_each_function(opts, [&](Function& function) {
    for (Capture capture : std::vector<Capture>(function.captures())) {
      auto* const tensor = std::get_if<Tensor>(&capture.value);
      if (!tensor) continue;
      move(*tensor);
      function.set(capture);
    }
  });
}

}  // namespace flashjit::runtime
