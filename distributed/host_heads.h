// SPDX-License-Identifier: Apache-2.0
// The all-to-all within a host: each of its ranks has some rows of all heads, and then all rows of some heads.
#pragma once

#include <vector>

#include "distributed/plan.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

// Moves tensors between two forms. In own a rank has its own rows of all heads; in host it has the rows of all ranks of
// its host, of its share of the heads.
class HostHeads {
 public:
  HostHeads(const Workspace& work, const Hosts& hosts, const Sizes& sizes);

  HeadShare share() const;  // this rank's heads
  // Memory for a tensor in the form host.
  DeviceTensor allocate(Side side, DType dtype, std::int64_t head_dim) const;
  DeviceTensor allocate_lse() const;

  // Add the messages to an exchange: gather() those that make host of own, scatter() those that take it back. Partial
  // results are of queries.
  void gather(ViewExchange& exchange, Side side, const Tensor& own, const Tensor& host) const;
  void gather(ViewExchange& exchange, const Partial& own, const Partial& host) const;
  void scatter(ViewExchange& exchange, Side side, const Tensor& host, const Tensor& own) const;
  void scatter(ViewExchange& exchange, const Partial& host, const Partial& own) const;

 private:
  // Where rows of a rank are, in its own tensor and in the form host.
  struct Place {
    RowsView own, host;
  };
  std::vector<Place> places(Side side, int rank_in_host) const;
  RowRange heads_of_rank(Side side, int rank_in_host) const;
  template <typename Rows>
  void gather_rows(ViewExchange& exchange, Side side, const Rows& own, const Rows& host) const;
  template <typename Rows>
  void scatter_rows(ViewExchange& exchange, Side side, const Rows& host, const Rows& own) const;

  const Workspace& work_;
  const Hosts& hosts_;
  const Sizes& sizes_;
  int first_rank_, self_;              // of the host, and this one in it
  std::vector<Piece> queries_, keys_;  // of the host
};

}  // namespace flashjit::distributed
