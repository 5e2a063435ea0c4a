// SPDX-License-Identifier: Apache-2.0
// What each rank sends, receives and computes, as rows: no tensors, and the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/positions.h"

namespace flashjit::distributed {

// What nodes have: parties to a ring or an all-gather, which are single ranks, or hosts whose ranks share out heads.
struct Nodes {
  std::vector<std::vector<Span>> queries, keys;  // of each, in the order of its rows
  Window mask;
  std::int64_t query_shift = 0;  // of positions: what the first query of all stands at

  int count() const noexcept { return static_cast<int>(queries.size()); }
};

// Rows that go to a node, of this one's keys, or that come from it, into a block.
struct Transfer {
  int node = 0;
  RowRange rows;
};

// Of a span of the queries and rows of a block.
struct BlockCall {
  std::size_t queries = 0;  // which span
  Sight sight;              // its keys are rows of the block
  // Where the first of them stand in sequences whose first query and first key are 0.
  std::int64_t first_query = 0, first_key = 0;
};

// A block of keys and values comes, and is computed with while that of the next step is under way.
struct Step {
  std::vector<Transfer> sends, receives;
  bool own = false;         // the block is the node's own tensor, and nothing comes
  std::vector<Span> block;  // otherwise, the positions of its rows
  std::vector<BlockCall> calls;
};
using Schedule = std::vector<Step>;

// A single node, which has the whole sequences: one call without any arithmetic on positions.
Schedule whole_schedule(const Nodes& nodes);
// Each block goes straight from the node that has it to the one whose queries see it, in the order of a ring: in step i
// to the i-th node behind. A node gets no more than it needs then, and none has to pass on what it does not need
// itself.
Schedule ring_schedule(const Nodes& nodes, int node);
// One block, of all that the node's queries see, in which touching spans of different nodes are one.
Schedule all_gather_schedule(const Nodes& nodes, int node);

// Ranks that have whole hosts' positions between them.
struct Hosts {
  // The positions that a rank has. Where they do not matter they are numbered rank by rank, so that everything touches.
  std::vector<std::vector<Span>> queries, keys;
  Window mask;
  std::int64_t query_shift = 0;
  int ranks_of_host = 1;  // neighbours, among which heads are shared out

  int count() const noexcept { return static_cast<int>(queries.size()) / ranks_of_host; }
  // The rows that a host's ranks have together.
  std::vector<Span> queries_of(int host) const;
  std::vector<Span> keys_of(int host) const;
  Nodes nodes() const;
};
Hosts hosts_of(const Options& options, int ranks_of_host);

}  // namespace flashjit::distributed
