// SPDX-License-Identifier: Apache-2.0
#include "distributed/rank_model.h"

#include <algorithm>
#include <set>

#include "flashjit/error.h"

namespace flashjit::distributed {

RankModel::RankModel(const Sizes& sizes, const Options& options, const Plan& plan, int rank)
    : sizes_(sizes),
      options_(options),
      plan_(plan),
      rank_(rank),
      heads_(heads_of(sizes, of_host(), rank % of_host())) {}

// Whether ranks that do the same in their hosts, or single ranks, are on one host.
bool RankModel::is_near(int other_node) const {
  return other_node * of_host() / ranks_together() == node() * of_host() / ranks_together();
}

std::int64_t RankModel::row_bytes(Side side, const RowWidth& width) const {
  return sizes_.batch * (side == Side::queries ? heads_.queries : heads_.keys).count * width.dims * width.element;
}

std::int64_t RankModel::received(const std::vector<Transfer>& transfers, std::int64_t row_bytes) const {
  std::int64_t rows = 0;
  for (const Transfer& transfer : transfers) rows += transfer.node == node() ? 0 : transfer.rows.count;
  return rows * row_bytes;
}

double RankModel::transfer_time(const std::vector<Transfer>& transfers, std::int64_t row_bytes) const {
  double seconds = 0;
  for (const Transfer& transfer : transfers)
    if (transfer.node != node())
      seconds += static_cast<double>(transfer.rows.count * row_bytes) /
                 (is_near(transfer.node) ? machine().bytes : machine().bytes_across);
  return seconds > 0 ? seconds + machine().exchange : 0;
}

double RankModel::compute_time(const Step& step, std::int64_t dims_of_pair, double flops) const {
  double pairs = 0;
  for (const Sight& call : step.calls) pairs += call.pairs;
  return 2 * pairs * static_cast<double>(sizes_.batch * heads_.queries.count * dims_of_pair) / flops +
         machine().call * static_cast<double>(step.calls.size());
}

void RankModel::add_shared_heads(Estimate& found, const SharedRows& moved) const {
  if (of_host() == 1) return;
  const auto rows_of = [](const std::vector<std::vector<Span>>& ranks, int rank) {
    return length(ranks[static_cast<std::size_t>(rank)]);
  };
  const Hosts& hosts = plan_.hosts;
  std::int64_t bytes = 0;
  for (int i = 0; i < of_host(); ++i) {
    const int peer = node() * of_host() + i;
    if (peer == rank_) continue;
    bytes += rows_of(hosts.queries, peer) * row_bytes(Side::queries, moved.queries) +
             rows_of(hosts.keys, peer) * row_bytes(Side::keys, moved.keys) +
             rows_of(hosts.queries, rank_) * row_bytes(Side::queries, moved.queries_back) +
             rows_of(hosts.keys, rank_) * row_bytes(Side::keys, moved.keys_back);
  }
  found.bytes += bytes;
  found.seconds +=
      static_cast<double>(bytes) / (of_host() <= ranks_together() ? machine().bytes : machine().bytes_across) +
      2 * machine().exchange;
}

Estimate worst_estimate(Scheme scheme, const Sizes& sizes, const Options& options, const Estimation& estimation) {
  const int ranks = options.queries.ranks();
  Estimate worst;
  worst.scheme = scheme;
  for (const int rank : std::set<int>{0, ranks / 2, ranks - 1}) {
    const Plan plan = estimation.plan_of(scheme, options, rank);
    const Estimate found = estimation.of_rank(sizes, RankModel(sizes, options, plan, rank));
    worst.bytes = std::max(worst.bytes, found.bytes);
    worst.calls = std::max(worst.calls, found.calls);
    worst.seconds = std::max(worst.seconds, found.seconds);
  }
  return worst;
}

std::vector<Estimate> estimates_of(const Sizes& sizes, const Options& options, const Estimation& estimation) {
  check(sizes, options);
  const bool has_hosts = options.ranks_of_host > 1 && options.ranks_of_host < options.queries.ranks();
  std::vector<Estimate> found;
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level})
    if ((scheme != Scheme::two_level || has_hosts) && estimation.why_not(scheme, sizes, options).empty())
      found.push_back(worst_estimate(scheme, sizes, options, estimation));
  if (found.empty()) throw Error(ErrorCode::unsupported, why_no_scheme(sizes, options, estimation.why_not));
  std::stable_sort(found.begin(), found.end(),
                   [](const Estimate& a, const Estimate& b) { return a.seconds < b.seconds; });
  return found;
}

}  // namespace flashjit::distributed
