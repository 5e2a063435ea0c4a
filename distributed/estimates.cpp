// SPDX-License-Identifier: Apache-2.0
// The model of time by which a scheme is chosen: docs/distributed.md.
#include <algorithm>
#include <set>

#include "distributed/plan.h"
#include "distributed/reject.h"

namespace flashjit::distributed {
namespace {

class RankModel {
 public:
  RankModel(const Sizes& sizes, const Options& options, const Plan& plan, int rank)
      : sizes_(sizes),
        options_(options),
        plan_(plan),
        rank_(rank),
        heads_(heads_of(sizes, of_host(), rank % of_host())) {}

  Estimate estimate() const {
    Estimate found;
    found.scheme = plan_.scheme;
    if (of_host() > 1) add_heads(found);
    for (std::size_t i = 0; i < plan_.schedule.size(); ++i) {
      const Step& step = plan_.schedule[i];
      found.calls += static_cast<std::int64_t>(step.calls.size());
      found.bytes += received(step);
      // What comes for the next step comes under this one's kernels; for the first step there is nothing to hide it.
      const double next = i + 1 < plan_.schedule.size() ? transfer_time(plan_.schedule[i + 1]) : 0;
      found.seconds += (i == 0 ? transfer_time(step) : 0) + std::max(compute_time(step), next);
    }
    return found;
  }

 private:
  int of_host() const { return plan_.hosts.ranks_of_host; }
  int node() const { return rank_ / of_host(); }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(sizes_.dtype)); }
  std::int64_t rows_of(const std::vector<std::vector<Span>>& ranks, int rank) const {
    return length(ranks[static_cast<std::size_t>(rank)]);
  }
  // Whether ranks that do the same in their hosts, or single ranks, are on one host.
  bool is_near(int other_node) const {
    const int together = options_.ranks_of_host > 0 ? options_.ranks_of_host : options_.queries.ranks();
    return other_node * of_host() / together == node() * of_host() / together;
  }

  std::int64_t received(const Step& step) const {
    std::int64_t rows = 0;
    for (const Transfer& transfer : step.receives) rows += transfer.node == node() ? 0 : transfer.rows.count;
    return rows * row_bytes();
  }
  std::int64_t row_bytes() const {
    return sizes_.batch * heads_.keys.count * (sizes_.head_dim + sizes_.head_dim_v) * element();
  }
  double transfer_time(const Step& step) const {
    double seconds = 0;
    for (const Transfer& transfer : step.receives)
      if (transfer.node != node())
        seconds += static_cast<double>(transfer.rows.count * row_bytes()) /
                   (is_near(transfer.node) ? options_.machine.bytes : options_.machine.bytes_across);
    return seconds > 0 ? seconds + options_.machine.exchange : 0;
  }
  double compute_time(const Step& step) const {
    double pairs = 0;
    for (const BlockCall& call : step.calls) pairs += call.sight.pairs;
    return 2 * pairs *
               static_cast<double>(sizes_.batch * heads_.queries.count * (sizes_.head_dim + sizes_.head_dim_v)) /
               options_.machine.flops +
           options_.machine.call * static_cast<double>(step.calls.size());
  }

  // Queries, keys and values of this rank's heads come from the others of its host, and its rows of the output.
  void add_heads(Estimate& found) const {
    std::int64_t bytes = 0;
    for (int i = 0; i < of_host(); ++i) {
      const int peer = node() * of_host() + i;
      if (peer == rank_) continue;
      bytes +=
          rows_of(plan_.hosts.queries, peer) * sizes_.batch * heads_.queries.count * sizes_.head_dim * element() +
          rows_of(plan_.hosts.keys, peer) * row_bytes() +
          rows_of(plan_.hosts.queries, rank_) * sizes_.batch * heads_.queries.count * sizes_.head_dim_v * element();
    }
    const int together = options_.ranks_of_host > 0 ? options_.ranks_of_host : options_.queries.ranks();
    const bool is_within = of_host() <= together;
    found.bytes += bytes;
    found.seconds += static_cast<double>(bytes) / (is_within ? options_.machine.bytes : options_.machine.bytes_across) +
                     2 * options_.machine.exchange;
  }

  const Sizes& sizes_;
  const Options& options_;
  const Plan& plan_;
  int rank_;
  HeadShare heads_;
};

Estimate estimate_of(Scheme scheme, const Sizes& sizes, const Options& options) {
  const int ranks = options.queries.ranks();
  Estimate worst;
  for (const int rank : std::set<int>{0, ranks / 2, ranks - 1}) {
    const Plan plan = plan_of(scheme, options, rank);
    const Estimate found = RankModel(sizes, options, plan, rank).estimate();
    worst.scheme = scheme;
    worst.bytes = std::max(worst.bytes, found.bytes);
    worst.calls = std::max(worst.calls, found.calls);
    worst.seconds = std::max(worst.seconds, found.seconds);
  }
  return worst;
}

}  // namespace

std::vector<Estimate> estimates(const Sizes& sizes, const Options& options) {
  check(sizes, options);
  const bool has_hosts = options.ranks_of_host > 1 && options.ranks_of_host < options.queries.ranks();
  std::vector<Estimate> found;
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level}) {
    if (scheme == Scheme::two_level && !has_hosts) continue;
    if (why_not(scheme, sizes, options).empty()) found.push_back(estimate_of(scheme, sizes, options));
  }
  if (found.empty()) throw Error(ErrorCode::unsupported, why_no_scheme(sizes, options));
  std::stable_sort(found.begin(), found.end(),
                   [](const Estimate& a, const Estimate& b) { return a.seconds < b.seconds; });
  return found;
}

}  // namespace flashjit::distributed
