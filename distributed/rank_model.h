// SPDX-License-Identifier: Apache-2.0
// The model of time: what rows of a rank weigh and what calls on them cost. docs/distributed.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "distributed/plan.h"

namespace flashjit::distributed {

// Sums of the head dims of tensors whose rows move together, and of how many bytes a number is.
struct RowWidth {
  std::int64_t dims = 0, element = 2;
};

class RankModel {
 public:
  RankModel(const Sizes& sizes, const Options& options, const Plan& plan, int rank);

  // Of a row of this rank's heads, of queries or of keys, of all batch entries.
  std::int64_t row_bytes(Side side, const RowWidth& width) const;
  // What comes from other nodes, and when it is there; 0 where nothing comes.
  std::int64_t received(const std::vector<Transfer>& transfers, std::int64_t row_bytes) const;
  double transfer_time(const std::vector<Transfer>& transfers, std::int64_t row_bytes) const;
  // Of kernels whose products have so many head dims for each pair of a query and a key.
  double compute_time(const Step& step, std::int64_t dims_of_pair, double flops) const;

  // What heads cost that are shared out within a host: rows of queries and of keys that come, and that come back.
  struct SharedRows {
    RowWidth queries, keys, queries_back, keys_back;
  };
  void add_shared_heads(Estimate& found, const SharedRows& moved) const;

  const Machine& machine() const { return options_.machine; }
  const Plan& plan() const { return plan_; }
  int node() const { return rank_ / of_host(); }

 private:
  int of_host() const { return plan_.hosts.ranks_of_host; }
  int ranks_together() const { return options_.ranks_of_host > 0 ? options_.ranks_of_host : options_.queries.ranks(); }
  bool is_near(int other_node) const;

  const Sizes& sizes_;
  const Options& options_;
  const Plan& plan_;
  int rank_;
  HeadShare heads_;
};

// How attention, or its gradients, are estimated.
struct Estimation {
  std::string (*why_not)(Scheme scheme, const Sizes& sizes, const Options& options);
  Plan (*plan_of)(Scheme scheme, const Options& options, int rank);
  Estimate (*of_rank)(const Sizes& sizes, const RankModel& model);
};
// Of the first, the middle and the last rank the most of each.
Estimate worst_estimate(Scheme scheme, const Sizes& sizes, const Options& options, const Estimation& estimation);
// Of all schemes that there is no reason against, the fastest first.
std::vector<Estimate> estimates_of(const Sizes& sizes, const Options& options, const Estimation& estimation);

}  // namespace flashjit::distributed
