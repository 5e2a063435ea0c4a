// SPDX-License-Identifier: Apache-2.0
#include "distributed/schedule.h"

#include <algorithm>

#include "distributed/packed.h"
#include "distributed/support.h"

namespace flashjit::distributed {
namespace {

std::vector<Sight> calls_on(const std::vector<Span>& queries, const std::vector<Piece>& block, const Nodes& nodes) {
  std::vector<Sight> calls;
  const OrderedPieces keys(block, nodes.mask.sequences);
  for (const Piece& by : pieces(queries))
    for (const Piece& of : keys.beside(by.span))
      if (std::optional<Sight> view = sight(by.span, of.span, nodes.mask)) {
        view->queries.first += by.row;
        view->keys.first += of.row;
        calls.push_back(*view);
      }
  return nodes.tells_positions ? calls : joined_calls(calls);
}

// For each block of keys a kernel of gradients walks through all queries that see it, and those that do not stay in L2
// until the next block does are read again. Below a causal mask it walks through few at a time.
constexpr std::int64_t kMostQueries = 32768;

std::vector<Sight> cut_where_all_is_seen(const std::vector<Sight>& calls) {
  std::vector<Sight> found;
  for (const Sight& call : calls) {
    const bool sees_all = call.window == Window{} && call.cu_seqlens.empty();
    const std::int64_t count = call.queries.count, parts = sees_all ? (count + kMostQueries - 1) / kMostQueries : 1;
    if (parts == 1) {
      found.push_back(call);
      continue;
    }
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t first = count * i / parts, end = count * (i + 1) / parts;
      found.push_back(*of_queries(call, {call.queries.first + first, end - first}));
    }
  }
  return found;
}

// Takes calls of the queries from a row on out of them, where a single call is cut.
std::vector<Sight> taken_from(std::vector<Sight>& calls, std::int64_t row) {
  std::vector<Sight> before, behind;
  for (const Sight& call : calls) {
    const std::int64_t first = call.queries.first, end = first + call.queries.count;
    if (calls.size() > 1 || !call.cu_seqlens.empty() || first >= row || end <= row) {
      (first < row ? before : behind).push_back(call);
      continue;
    }
    if (const auto part = of_queries(call, {first, row - first})) before.push_back(*part);
    if (const auto part = of_queries(call, {row, end - row})) behind.push_back(*part);
  }
  calls = before;
  return behind;
}

std::vector<Transfer> sends_to(const Nodes& nodes, int from, int to) {
  std::vector<Transfer> sends;
  for (const Piece& piece :
       seen(nodes.queries[static_cast<std::size_t>(to)], nodes.keys[static_cast<std::size_t>(from)], nodes.mask))
    sends.push_back({to, {piece.row, piece.span.count}});
  return sends;
}

std::vector<Span> spans_of(const std::vector<Piece>& pieces) {
  std::vector<Span> spans;
  for (const Piece& piece : pieces) spans.push_back(piece.span);
  return spans;
}

std::vector<Span> joined_of_host(const std::vector<std::vector<Span>>& of_ranks, int host, int ranks_of_host) {
  std::vector<Span> spans;
  for (int i = 0; i < ranks_of_host; ++i) {
    const std::vector<Span>& of_rank = of_ranks[static_cast<std::size_t>(host * ranks_of_host + i)];
    spans.insert(spans.end(), of_rank.begin(), of_rank.end());
  }
  return joined(std::move(spans));
}

// As if the sequence were shared out in the order of ranks.
std::vector<std::vector<Span>> numbered_by_rank(const Sharding& sharding) {
  std::vector<std::vector<Span>> all;
  std::int64_t first = 0;
  for (int rank = 0; rank < sharding.ranks(); ++rank) {
    const std::int64_t count = sharding.length(rank);
    all.emplace_back();
    if (count > 0) all.back().push_back({first, count, 1});
    first += count;
  }
  return all;
}

// offset: of position 0.
std::vector<std::vector<Span>> positions(const Sharding& sharding, std::int64_t offset) {
  std::vector<std::vector<Span>> all;
  for (int rank = 0; rank < sharding.ranks(); ++rank) {
    all.push_back(sharding.spans(rank));
    for (Span& span : all.back()) span.first += offset;
  }
  return all;
}

// Which all ranks of a single host have between them, whatever the layout.
std::vector<Span> whole(const std::vector<Span>& spans, std::int64_t first) {
  const std::int64_t count = length(spans);
  return count == 0 ? std::vector<Span>{} : std::vector<Span>{{first, count, 1}};
}

}  // namespace

Nodes mirrored(const Nodes& nodes) {
  const Window& window = nodes.mask.window;
  return {nodes.keys, nodes.queries, {{window.right, window.left}, nodes.mask.sequences}, nodes.tells_positions};
}

Schedule whole_schedule(const Nodes& nodes) {
  const std::int64_t queries = length(nodes.queries.front()), keys = length(nodes.keys.front());
  Step step;
  step.own = true;
  if (queries > 0) {
    Sight all = sight(nodes.queries.front().front(), {0, keys, 1}, nodes.mask).value_or(Sight());
    all.queries = {0, queries}, all.keys = {0, keys}, all.window = nodes.mask.window, all.first_key = 0;
    step.calls.push_back(all);
  }
  return {step};
}

Schedule ring_schedule(const Nodes& nodes, int node) {
  const std::vector<Span>& queries = nodes.queries[static_cast<std::size_t>(node)];
  Schedule schedule;
  for (int i = 0; i < nodes.count(); ++i) {
    const int from = (node - i + nodes.count()) % nodes.count(), to = (node + i) % nodes.count();
    const std::vector<Piece> needed = seen(queries, nodes.keys[static_cast<std::size_t>(from)], nodes.mask);
    Step step;
    step.own = i == 0;
    if (step.own) {
      step.calls = calls_on(queries, needed, nodes);
    } else {
      step.block = spans_of(needed);
      const std::vector<Piece> block = pieces(step.block);
      for (const Piece& piece : block) step.receives.push_back({from, {piece.row, piece.span.count}});
      step.sends = sends_to(nodes, node, to);
      step.calls = calls_on(queries, block, nodes);
    }
    schedule.push_back(std::move(step));
  }
  return schedule;
}

Schedule gradient_ring_schedule(const Nodes& nodes, int node) {
  Schedule schedule = ring_schedule(nodes, node);
  for (Step& step : schedule) step.calls = cut_where_all_is_seen(step.calls);
  const auto goes_back = [](const Step& step) { return !step.sends.empty() || !step.receives.empty(); };
  if (std::none_of(schedule.begin(), schedule.end(), goes_back)) return schedule;
  Step last;
  last.own = true;
  last.calls = taken_from(schedule.front().calls, length(nodes.queries[static_cast<std::size_t>(node)]) / 2);
  schedule.push_back(std::move(last));
  return schedule;
}

Schedule all_gather_schedule(const Nodes& nodes, int node) {
  const std::vector<Span>& queries = nodes.queries[static_cast<std::size_t>(node)];
  std::vector<std::vector<Piece>> needed;
  std::vector<Span> all;
  for (const std::vector<Span>& keys : nodes.keys) {
    needed.push_back(seen(queries, keys, nodes.mask));
    for (const Piece& piece : needed.back()) all.push_back(piece.span);
  }
  Step step;
  step.block = cut(joined(std::move(all)), nodes.mask.sequences);
  const std::vector<Piece> block = pieces(step.block);
  for (int peer = 0; peer < nodes.count(); ++peer) {
    for (const Piece& piece : needed[static_cast<std::size_t>(peer)])
      step.receives.push_back({peer, {rows_of(piece.span, block).first, piece.span.count}});
    const std::vector<Transfer> sends = sends_to(nodes, node, peer);
    step.sends.insert(step.sends.end(), sends.begin(), sends.end());
  }
  step.calls = calls_on(queries, block, nodes);
  return {step};
}

std::vector<Span> Hosts::of_host(const std::vector<std::vector<Span>>& of_ranks, int host) const {
  const std::vector<Span> spans = joined_of_host(of_ranks, host, ranks_of_host);
  return cut(count() > 1 || spans.empty() ? spans : whole(spans, spans.front().first), mask.sequences);
}

Nodes Hosts::nodes() const {
  Nodes nodes;
  nodes.mask = mask;
  nodes.tells_positions = tells_positions;
  for (int host = 0; host < count(); ++host) {
    nodes.queries.push_back(queries_of(host));
    nodes.keys.push_back(keys_of(host));
  }
  return nodes;
}

Hosts hosts_of(const Options& options, int ranks_of_host) {
  const Sharding& queries = options.queries;
  const Sharding& keys = options.keys ? *options.keys : queries;
  Hosts hosts;
  hosts.ranks_of_host = ranks_of_host;
  hosts.mask.window = options.attention.window;
  if (options.attention.causal) hosts.mask.window.right = 0;
  hosts.tells_positions = tells_positions(options.attention);
  if (const PackedShards* packed = packed_shards(queries)) {
    hosts.mask.sequences = Sequences(packed->offsets);
    hosts.queries = hosts.keys = packed->numbered;
    return hosts;
  }
  const bool matter = positions_matter(options.attention);
  if (matter) hosts.mask.query_shift = keys.seqlen() - queries.seqlen();
  hosts.queries = matter ? positions(queries, hosts.mask.query_shift) : numbered_by_rank(queries);
  hosts.keys = matter ? positions(keys, 0) : numbered_by_rank(keys);
  return hosts;
}

}  // namespace flashjit::distributed
