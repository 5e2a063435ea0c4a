// SPDX-License-Identifier: Apache-2.0
// Gradients over shards, and the same over the whole sequences by the reference.
#pragma once

#include <vector>

#include "tests/distributed/attention_case.h"

namespace flashjit::tests {

struct WholeGradients {
  HostTensor dq, dk, dv;
};

inline HostTensor dout_of(const AttentionCase& of) {
  return HostTensor::random_normal(of.dtype, {of.batch, of.seqlen_q, of.num_heads_q, of.head_dim}, 4);
}

inline WholeGradients gradients_over_shards(Engine& engine, const OnRanks& ranks, const AttentionCase& of,
                                            const BackwardOptions& backward) {
  const WholeTensors whole(of);
  const HostTensor douts = dout_of(of);
  const distributed::Options options = of.distributed_options();
  std::vector<HostTensor> dq(static_cast<std::size_t>(of.ranks)), dk = dq, dv = dq;
  rethrow_first(ranks([&](distributed::Group& group) {
    const int rank = group.rank(), device = group.transport().device();
    const auto own = [&](const HostTensor& tensor, const distributed::Sharding& sharding) {
      return distributed::shard(tensor, sharding, rank).to_device(nullptr, device);
    };
    const DeviceTensor q = own(whole.q, options.queries), k = own(whole.k, of.keys()), v = own(whole.v, of.keys()),
                       dout = own(douts, options.queries);
    const DeviceTensor lse =
        DeviceTensor::allocate(DType::f32, {of.batch, of.num_heads_q, options.queries.length(rank)}, nullptr, device);
    distributed::Options forward = options;
    forward.scheme = distributed::Scheme::all_gather;  // which all of these cases have
    if (of.scheme == distributed::Scheme::all_to_all) forward.scheme = of.scheme;
    forward.attention.lse = lse.view();
    const DeviceTensor out = distributed::attention(engine, group, q, k, v, forward);
    const Gradients found = distributed::attention_backward(engine, group, dout, q, k, v, out, lse, options, backward);
    const auto i = static_cast<std::size_t>(rank);
    dq[i] = HostTensor::from_device(found.dq);
    dk[i] = HostTensor::from_device(found.dk);
    dv[i] = HostTensor::from_device(found.dv);
  }));
  return {distributed::gather(dq, options.queries), distributed::gather(dk, of.keys()),
          distributed::gather(dv, of.keys())};
}

// engine: for functions, which the reference applies by its kernels.
inline bool are_right(const WholeGradients& found, const AttentionCase& of, Engine& engine) {
  const WholeTensors whole(of);
  const HostTensor dout = dout_of(of);
  const WholeOptions with(of);
  const reference::Gradients exact = engine.reference_backward(dout.view(), whole.q.view(), whole.k.view(),
                                                               whole.v.view(), with.options),
                             low = engine.reference_backward_in_low_precision(
                                 dout.view(), whole.q.view(), whole.k.view(), whole.v.view(), with.options);
  return reference::compare(found.dq, exact.dq, low.dq).passed &&
         reference::compare(found.dk, exact.dk, low.dk).passed && reference::compare(found.dv, exact.dv, low.dv).passed;
}

inline bool is_same(const WholeGradients& a, const WholeGradients& b) {
  return a.dq.to_doubles() == b.dq.to_doubles() && a.dk.to_doubles() == b.dk.to_doubles() &&
         a.dv.to_doubles() == b.dv.to_doubles();
}

}  // namespace flashjit::tests
