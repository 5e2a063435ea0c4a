// SPDX-License-Identifier: Apache-2.0
// The all-to-all within a host: each of its ranks has some rows of all heads, and then all rows of some heads.
#pragma once

#include <vector>

#include "distributed/plan.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

// Whose rows and heads a tensor has.
enum class Side { queries, keys };

// own: this rank's rows of all heads. host: all rows of the host's ranks, of this rank's heads.
class HostHeads {
 public:
  HostHeads(const Workspace& work, const Hosts& hosts, const Sizes& sizes);

  HeadShare share() const;  // this rank's heads
  // For what is gathered.
  DeviceTensor allocate(Side side, DType dtype, std::int64_t head_dim) const;
  DeviceTensor allocate_lse() const;

  // Add to an exchange what brings rows together, and what takes them back to where they are from. Rows with their LSE
  // are of queries.
  void gather(ViewExchange& exchange, Side side, const Tensor& own, const Tensor& host) const;
  void gather(ViewExchange& exchange, const Partial& own, const Partial& host) const;
  void scatter(ViewExchange& exchange, Side side, const Tensor& host, const Tensor& own) const;
  void scatter(ViewExchange& exchange, const Partial& host, const Partial& own) const;

 private:
  // Of what a rank has, where it stands among its own rows and among the host's.
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
  int first_rank_, self_;             // of the host, and this one in it
  std::vector<Span> queries_, keys_;  // of the host
};

}  // namespace flashjit::distributed
