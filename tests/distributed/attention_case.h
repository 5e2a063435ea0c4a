// SPDX-License-Identifier: Apache-2.0
// Attention over shards, and the same over the whole sequences by the reference.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/distributed.h"
#include "flashjit/flashjit.h"
#include "tests/distributed/in_process.h"

namespace flashjit::tests {

struct AttentionCase {
  distributed::Layout layout = distributed::Layout::contiguous;
  distributed::Scheme scheme = distributed::Scheme::ring;
  int ranks = 2, ranks_of_host = 0;
  std::int64_t batch = 1, seqlen_q = 37, seqlen_kv = 37, num_heads_q = 4, num_heads_kv = 2, head_dim = 16;
  DType dtype = DType::bf16;
  AttentionOptions options = {};
  std::optional<HostTensor> bias = std::nullopt;  // of all queries
  std::vector<std::int64_t> cu_seqlens = {};      // of packed sequences, whose last offset both seqlens are

  distributed::Options distributed_options() const {
    if (!cu_seqlens.empty())
      return {distributed::Sharding::packed(layout, cu_seqlens, ranks), std::nullopt, options, scheme, ranks_of_host};
    distributed::Options given{distributed::Sharding(layout, seqlen_q, ranks),
                               distributed::Sharding(layout, seqlen_kv, ranks), options, scheme, ranks_of_host};
    return given;
  }
  std::string text() const {
    return std::string(to_string(scheme)) + " " + to_string(layout) + ", ranks " + std::to_string(ranks) + " of " +
           std::to_string(ranks_of_host) + ", batch " + std::to_string(batch) + ", seqlen " + std::to_string(seqlen_q) +
           " " + std::to_string(seqlen_kv) + ", heads " + std::to_string(num_heads_q) + " " +
           std::to_string(num_heads_kv) + (options.causal ? ", causal" : "") + ", window " +
           std::to_string(options.window.left) + " " + std::to_string(options.window.right) + ", offsets " +
           std::to_string(cu_seqlens.size());
  }
  distributed::Sharding keys() const {
    const distributed::Options given = distributed_options();
    return given.keys.value_or(given.queries);
  }
};

// Of one call with the whole.
struct WholeOptions {
  explicit WholeOptions(const AttentionCase& of) : options(of.options) {
    if (of.bias) options.bias = of.bias->view();
    if (of.cu_seqlens.empty()) return;
    offsets = HostTensor(DType::i32, {static_cast<std::int64_t>(of.cu_seqlens.size())});
    for (std::size_t i = 0; i < of.cu_seqlens.size(); ++i)
      store_element(offsets.data(), DType::i32, static_cast<std::int64_t>(i), static_cast<double>(of.cu_seqlens[i]));
    options.cu_seqlens_q = options.cu_seqlens_kv = offsets.view();
  }
  HostTensor offsets;
  AttentionOptions options;
};

struct WholeTensors {
  explicit WholeTensors(const AttentionCase& of)
      : q(HostTensor::random_normal(of.dtype, {of.batch, of.seqlen_q, of.num_heads_q, of.head_dim}, 1)),
        k(HostTensor::random_normal(of.dtype, {of.batch, of.seqlen_kv, of.num_heads_kv, of.head_dim}, 2)),
        v(HostTensor::random_normal(of.dtype, {of.batch, of.seqlen_kv, of.num_heads_kv, of.head_dim}, 3)) {}
  HostTensor q, k, v;
};

struct WholeResult {
  HostTensor out, lse;
};

inline void rethrow_first(const std::vector<std::exception_ptr>& thrown) {
  for (const std::exception_ptr& error : thrown)
    if (error) std::rethrow_exception(error);
}

// Does something on each rank and returns what each threw.
using OnRanks = std::function<std::vector<std::exception_ptr>(const std::function<void(distributed::Group&)>&)>;

inline std::optional<DeviceTensor> bias_of(const AttentionCase& of, int rank, int device) {
  constexpr int kQueriesDim = 2;
  if (!of.bias) return std::nullopt;
  return distributed::shard(*of.bias, of.distributed_options().queries, rank, kQueriesDim).to_device(nullptr, device);
}

// told: what ranks are told of how tensors are sharded, if that is not the truth.
inline WholeResult attention_over_shards(Engine& engine, const OnRanks& ranks, const AttentionCase& of,
                                         const distributed::Options* told = nullptr) {
  const WholeTensors whole(of);
  const distributed::Options truth = of.distributed_options();
  std::vector<HostTensor> outs(static_cast<std::size_t>(of.ranks)), lses(outs.size());
  rethrow_first(ranks([&](distributed::Group& group) {
    const int rank = group.rank(), device = group.transport().device();
    const auto own = [&](const HostTensor& tensor, const distributed::Sharding& sharding) {
      return distributed::shard(tensor, sharding, rank).to_device(nullptr, device);
    };
    const DeviceTensor q = own(whole.q, truth.queries), k = own(whole.k, of.keys()), v = own(whole.v, of.keys());
    const DeviceTensor lse =
        DeviceTensor::allocate(DType::f32, {of.batch, of.num_heads_q, truth.queries.length(rank)}, nullptr, device);
    distributed::Options given = told ? *told : truth;
    const std::optional<DeviceTensor> bias = bias_of(of, rank, device);
    if (bias) given.attention.bias = bias->view();
    given.attention.lse = lse.view();
    outs[static_cast<std::size_t>(rank)] =
        HostTensor::from_device(distributed::attention(engine, group, q, k, v, given));
    lses[static_cast<std::size_t>(rank)] = HostTensor::from_device(lse);
  }));
  return {distributed::gather(outs, truth.queries), distributed::gather(lses, truth.queries, 2)};
}
inline WholeResult attention_over_shards(Engine& engine, World& world, const AttentionCase& of,
                                         const distributed::Options* told = nullptr) {
  return attention_over_shards(
      engine, [&](const auto& work) { return on_ranks(world, work); }, of, told);
}

// engine: for functions, which the reference applies by its kernels.
inline bool is_right(const WholeResult& found, const AttentionCase& of, Engine& engine) {
  const WholeTensors whole(of);
  const WholeOptions with(of);
  const reference::Result exact = engine.reference(whole.q.view(), whole.k.view(), whole.v.view(), with.options),
                          low = engine.reference_in_low_precision(whole.q.view(), whole.k.view(), whole.v.view(),
                                                                  with.options);
  return reference::compare(found.out, exact, low).passed && reference::compare_lse(found.lse, exact, low).passed;
}

inline bool is_same(const WholeResult& a, const WholeResult& b) {
  return a.out.to_doubles() == b.out.to_doubles() && a.lse.to_doubles() == b.lse.to_doubles();
}

}  // namespace flashjit::tests
