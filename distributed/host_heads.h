// SPDX-License-Identifier: Apache-2.0
// The all-to-all within a host: each of its ranks has some rows of all heads, and then all rows of some heads.
#pragma once

#include <optional>

#include "distributed/plan.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

// Of all rows that the ranks of a host have, this rank's heads.
struct HostTensors {
  DeviceTensor q, k, v, out;
  std::optional<DeviceTensor> lse;
};

class HostHeads {
 public:
  HostHeads(const Workspace& work, const Hosts& hosts, const Sizes& sizes);

  // Brings them together from this rank's rows and those of the others.
  HostTensors gather(const Tensor& q, const Tensor& k, const Tensor& v, bool with_lse) const;
  // Takes what was made of them back to where the rows are.
  void scatter(const HostTensors& host, const Tensor& out, const std::optional<Tensor>& lse) const;
  HeadShare share() const;

 private:
  int first_rank() const;
  HeadShare share_of(int i) const;
  // What the i-th rank of the host has of rows, and where they stand among its own and among the host's.
  struct Place {
    RowsView own, host;
  };
  std::vector<Place> places(const std::vector<std::vector<Span>>& of_ranks, const std::vector<Span>& of_host,
                            int i) const;
  struct Rows {
    const std::vector<std::vector<Span>>& of_ranks;
    std::vector<Span> of_host;
    RowRange HeadShare::*heads;
  };
  void gather(ViewExchange& exchange, const Rows& rows, const Tensor& own, const Tensor& host) const;

  const Workspace& work_;
  const Hosts& hosts_;
  const Sizes& sizes_;
  std::vector<Span> queries_, keys_;  // of the host
};

}  // namespace flashjit::distributed
