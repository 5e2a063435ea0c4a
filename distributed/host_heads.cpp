// SPDX-License-Identifier: Apache-2.0
#include "distributed/host_heads.h"

namespace flashjit::distributed {
namespace {

std::int64_t rows_of(const std::vector<Piece>& tensor) {
  return tensor.empty() ? 0 : tensor.back().row + tensor.back().span.count;
}

}  // namespace

HostHeads::HostHeads(const Workspace& work, const Hosts& hosts, const Sizes& sizes)
    : work_(work), hosts_(hosts), sizes_(sizes) {
  const int host = work.rank() / hosts.ranks_of_host;
  first_rank_ = host * hosts.ranks_of_host;
  self_ = work.rank() - first_rank_;
  queries_ = pieces(hosts.queries_of(host));
  keys_ = pieces(hosts.keys_of(host));
}

HeadShare HostHeads::share() const { return heads_of(sizes_, hosts_.ranks_of_host, self_); }

RowRange HostHeads::heads_of_rank(Side side, int rank_in_host) const {
  const HeadShare share = heads_of(sizes_, hosts_.ranks_of_host, rank_in_host);
  return side == Side::queries ? share.queries : share.keys;
}

DeviceTensor HostHeads::allocate(Side side, DType dtype, std::int64_t head_dim) const {
  const std::int64_t rows = rows_of(side == Side::queries ? queries_ : keys_);
  return work_.allocate(dtype, {sizes_.batch, rows, heads_of_rank(side, self_).count, head_dim});
}

DeviceTensor HostHeads::allocate_lse() const {
  return work_.allocate(DType::f32, {sizes_.batch, share().queries.count, rows_of(queries_)});
}

std::vector<HostHeads::Place> HostHeads::places(Side side, int rank_in_host) const {
  const auto& of_ranks = side == Side::queries ? hosts_.queries : hosts_.keys;
  std::vector<Place> found;
  for (const Piece& piece : pieces(of_ranks[static_cast<std::size_t>(first_rank_ + rank_in_host)])) {
    const RowsOfSpan in_host = rows_of(piece.span, side == Side::queries ? queries_ : keys_);
    found.push_back({{piece.row, piece.span.count, 1}, {in_host.first, piece.span.count, in_host.step}});
  }
  return found;
}

template <typename Rows>
void HostHeads::gather_rows(ViewExchange& exchange, Side side, const Rows& own, const Rows& host) const {
  for (int i = 0; i < hosts_.ranks_of_host; ++i) {
    const RowRange theirs = heads_of_rank(side, i);
    for (const Place& place : places(side, self_))
      exchange.send(first_rank_ + i, heads(rows(own, place.own), theirs.first, theirs.count));
    for (const Place& place : places(side, i)) exchange.receive(first_rank_ + i, rows(host, place.host));
  }
}

template <typename Rows>
void HostHeads::scatter_rows(ViewExchange& exchange, Side side, const Rows& host, const Rows& own) const {
  for (int i = 0; i < hosts_.ranks_of_host; ++i) {
    const RowRange theirs = heads_of_rank(side, i);
    for (const Place& place : places(side, i)) exchange.send(first_rank_ + i, rows(host, place.host));
    for (const Place& place : places(side, self_))
      exchange.receive(first_rank_ + i, heads(rows(own, place.own), theirs.first, theirs.count));
  }
}

void HostHeads::gather(ViewExchange& exchange, Side side, const Tensor& own, const Tensor& host) const {
  gather_rows(exchange, side, own, host);
}
void HostHeads::gather(ViewExchange& exchange, const Partial& own, const Partial& host) const {
  gather_rows(exchange, Side::queries, own, host);
}
void HostHeads::scatter(ViewExchange& exchange, Side side, const Tensor& host, const Tensor& own) const {
  scatter_rows(exchange, side, host, own);
}
void HostHeads::scatter(ViewExchange& exchange, const Partial& host, const Partial& own) const {
  scatter_rows(exchange, Side::queries, host, own);
}

}  // namespace flashjit::distributed
