// SPDX-License-Identifier: Apache-2.0
#include "distributed/host_heads.h"

namespace flashjit::distributed {

HostHeads::HostHeads(const Workspace& work, const Hosts& hosts, const Sizes& sizes)
    : work_(work),
      hosts_(hosts),
      sizes_(sizes),
      queries_(hosts.queries_of(work.transport().rank() / hosts.ranks_of_host)),
      keys_(hosts.keys_of(work.transport().rank() / hosts.ranks_of_host)) {}

int HostHeads::first_rank() const { return work_.transport().rank() / hosts_.ranks_of_host * hosts_.ranks_of_host; }

HeadShare HostHeads::share_of(int i) const { return heads_of(sizes_, hosts_.ranks_of_host, i); }
HeadShare HostHeads::share() const { return share_of(work_.transport().rank() - first_rank()); }

std::vector<HostHeads::Place> HostHeads::places(const std::vector<std::vector<Span>>& of_ranks,
                                                const std::vector<Span>& of_host, int i) const {
  std::vector<Place> found;
  for (const Piece& piece : pieces(of_ranks[static_cast<std::size_t>(first_rank() + i)])) {
    const RowsOfSpan in_host = rows_of(piece.span, of_host);
    found.push_back({{piece.row, piece.span.count, 1}, {in_host.first, piece.span.count, in_host.step}});
  }
  return found;
}

void HostHeads::gather(ViewExchange& exchange, const Rows& of, const Tensor& own, const Tensor& host) const {
  const int self = work_.transport().rank() - first_rank();
  for (int i = 0; i < hosts_.ranks_of_host; ++i) {
    const RowRange theirs = share_of(i).*of.heads;
    for (const Place& place : places(of.of_ranks, of.of_host, self))
      exchange.send(first_rank() + i, heads(rows(own, place.own), theirs.first, theirs.count));
    for (const Place& place : places(of.of_ranks, of.of_host, i))
      exchange.receive(first_rank() + i, rows(host, place.host));
  }
}

HostTensors HostHeads::gather(const Tensor& q, const Tensor& k, const Tensor& v, bool with_lse) const {
  const std::int64_t queries = length(queries_), keys = length(keys_), batch = sizes_.batch;
  const HeadShare own = share();
  HostTensors host;
  host.q = work_.allocate(q.dtype, {batch, queries, own.queries.count, sizes_.head_dim});
  host.k = work_.allocate(k.dtype, {batch, keys, own.keys.count, sizes_.head_dim});
  host.v = work_.allocate(v.dtype, {batch, keys, own.keys.count, sizes_.head_dim_v});
  host.out = work_.allocate(q.dtype, {batch, queries, own.queries.count, sizes_.head_dim_v});
  if (with_lse) host.lse = work_.allocate(DType::f32, {batch, own.queries.count, queries});
  ViewExchange exchange(work_);
  gather(exchange, {hosts_.queries, queries_, &HeadShare::queries}, q, host.q);
  gather(exchange, {hosts_.keys, keys_, &HeadShare::keys}, k, host.k);
  gather(exchange, {hosts_.keys, keys_, &HeadShare::keys}, v, host.v);
  exchange.start();
  exchange.finish();
  return host;
}

void HostHeads::scatter(const HostTensors& host, const Tensor& out, const std::optional<Tensor>& lse) const {
  const int self = work_.transport().rank() - first_rank();
  ViewExchange exchange(work_);
  for (int i = 0; i < hosts_.ranks_of_host; ++i) {
    const int peer = first_rank() + i;
    const RowRange theirs = share_of(i).queries;
    for (const Place& place : places(hosts_.queries, queries_, i)) {
      const Tensor sent = rows(host.out, place.host);
      if (lse)
        exchange.send(peer, Partial{sent, lse_rows(*host.lse, place.host)});
      else
        exchange.send(peer, sent);
    }
    for (const Place& place : places(hosts_.queries, queries_, self)) {
      const Tensor received = heads(rows(out, place.own), theirs.first, theirs.count);
      if (lse)
        exchange.receive(peer, Partial{received, lse_heads(lse_rows(*lse, place.own), theirs.first, theirs.count)});
      else
        exchange.receive(peer, received);
    }
  }
  exchange.start();
  exchange.finish();
}

}  // namespace flashjit::distributed
