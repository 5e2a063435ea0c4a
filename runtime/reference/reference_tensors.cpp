// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/reference_tensors.h"

#include <cstring>
#include <span>

#include "runtime/call/scores.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/byte_count.h"
#include "runtime/support/reject.h"

namespace flashjit::reference {
namespace {

using namespace runtime;

constexpr std::int64_t kTokensOfWord = 64;  // bits

enum class Size { exact, or_one, or_more };
struct SizeRule {
  const char* name;
  std::int64_t wanted;
  Size kind = Size::or_one;

  bool allows(std::int64_t size) const noexcept {
    return size == wanted || (kind == Size::or_one && size == 1) || (kind == Size::or_more && size > wanted);
  }
  const char* alternative() const noexcept {
    return kind == Size::or_one ? ", or 1 for all" : kind == Size::or_more ? " or more" : "";
  }
};

void check_tensor(const char* name, const Tensor& tensor, std::span<const SizeRule> rules) {
  const int rank = static_cast<int>(rules.size());
  if (tensor.shape.size() != rank)
    reject("{}: rank must be {}, was {} with shape {}", name, rank, tensor.shape.size(), to_string(tensor.shape));
  if (tensor.strides.size() != rank)
    reject("{}: must have {} strides like its shape, had {}", name, rank, tensor.strides.size());
  for (int i = 0; i < rank; ++i) {
    const SizeRule& rule = rules[static_cast<std::size_t>(i)];
    if (!rule.allows(tensor.shape[i]))
      reject("{}: {} must be {}{}, was {} with shape {}", name, rule.name, rule.wanted, rule.alternative(),
             tensor.shape[i], to_string(tensor.shape));
  }
  if (byte_count(name, tensor.dtype, tensor.shape) > 0 && !tensor.data)
    reject("{}: must point to host memory, was null", name);
}

void check_tensor(const char* name, const std::optional<Tensor>& tensor, std::initializer_list<SizeRule> rules) {
  if (tensor) check_tensor(name, *tensor, std::span(rules.begin(), rules.size()));
}

// Dimensions of one element stand for all.
template <std::size_t kDims>
std::int64_t offset_of(const Tensor& tensor, const std::int64_t (&indices)[kDims]) noexcept {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < kDims; ++i) {
    const int dim = static_cast<int>(i);
    if (tensor.shape[dim] > 1) offset += indices[i] * tensor.strides[dim];
  }
  return offset;
}

template <typename Value, std::size_t kDims>
Value element(const Tensor& tensor, const std::int64_t (&indices)[kDims]) noexcept {
  Value value;
  std::memcpy(&value, static_cast<const Value*>(tensor.data) + offset_of(tensor, indices), sizeof(value));
  return value;
}

bool is_true(const Tensor& tensor, const QueryPlace& place, std::int64_t key) noexcept {
  return element<std::uint8_t>(tensor, {place.batch, place.head, place.query, key}) != 0;
}

bool shown_by_documents(const Tensor& documents, const QueryPlace& place, std::int64_t key) noexcept {
  if (place.position() < 0) return false;
  const auto document_at = [&](std::int64_t at) { return element<std::int32_t>(documents, {place.batch, at}); };
  return document_at(place.position()) == document_at(key);
}

bool shown_by_tree(const Tensor& tree, const QueryPlace& place, std::int64_t key) noexcept {
  const std::int64_t token = key - (place.seqlen_kv - place.seqlen_q);
  if (token < 0) return true;
  const auto word = element<std::uint64_t>(tree, {place.batch, place.query, token / kTokensOfWord});
  return (word & std::uint64_t{1} << token % kTokensOfWord) != 0;
}

}  // namespace

void check_tensors_of_scores(const AttentionOptions& opts, const SequenceBounds& bounds, std::int64_t num_heads_q) {
  runtime::problem_of(DType::f32, 1, 1, opts, {});  // refuses their dtypes
  const SizeRule batch{"batch", bounds.batch}, heads{"num_heads", num_heads_q};
  const SizeRule queries{"seqlen_q", bounds.seqlen_q}, keys{"seqlen_kv", bounds.seqlen_kv, Size::exact};
  check_tensor("bias", opts.bias, {batch, heads, queries, keys});
  check_tensor("boolean_mask", opts.boolean_mask, {batch, heads, queries, keys});
  check_tensor("documents", opts.documents, {batch, keys});
  check_tensor("prefix", opts.prefix, {{"batch", batch.wanted, Size::exact}});
  if (opts.prefix && opts.prefix->dtype != DType::i32)
    reject("prefix: dtype must be i32, was {}", to_string(opts.prefix->dtype));
  if (opts.tree && queries.wanted > keys.wanted)
    reject("tree: seqlen_q must be at most seqlen_kv, as its queries have the last keys, was {} with {} keys",
           queries.wanted, keys.wanted);
  check_tensor("dropout_mask", opts.dropout_mask, {batch, heads, queries, keys});
  check_tensor("dropout_state", opts.dropout_state, {{"seed and offset", 2, Size::exact}});
  if (opts.dropout_state && opts.dropout_state->dtype != DType::i64)
    reject("dropout_state: dtype must be i64, was {}", to_string(opts.dropout_state->dtype));
  check_tensor("tree", opts.tree,
               {batch,
                {"seqlen_q", queries.wanted, Size::exact},
                {"words", (queries.wanted + kTokensOfWord - 1) / kTokensOfWord, Size::or_more}});
}

double bias_of(const Tensor& bias, const QueryPlace& place, std::int64_t key) noexcept {
  return load_element(bias.data, bias.dtype, offset_of(bias, {place.batch, place.head, place.query, key}));
}

std::int64_t prefix_of(const Tensor& prefix, std::int64_t batch) noexcept {
  return element<std::int32_t>(prefix, {batch});
}

bool is_kept(const Tensor& dropout_mask, const QueryPlace& place, std::int64_t key) noexcept {
  return is_true(dropout_mask, place, key);
}

Dropout dropout_of(const AttentionOptions& opts) noexcept {
  Dropout dropout = opts.dropout;
  if (opts.dropout_state) {
    dropout.seed = element<std::uint64_t>(*opts.dropout_state, {0});
    dropout.offset = element<std::uint64_t>(*opts.dropout_state, {1});
  }
  return dropout;
}

bool is_shown(const AttentionOptions& opts, const QueryPlace& place, std::int64_t key) noexcept {
  return (!opts.boolean_mask || is_true(*opts.boolean_mask, place, key)) &&
         (!opts.documents || shown_by_documents(*opts.documents, place, key)) &&
         (!opts.tree || shown_by_tree(*opts.tree, place, key));
}

}  // namespace flashjit::reference
