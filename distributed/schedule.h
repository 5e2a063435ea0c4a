// SPDX-License-Identifier: Apache-2.0
// What each rank sends, receives and computes, as rows: no tensors, and the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/positions.h"

namespace flashjit::distributed {

// The positions of each node. Nodes are the parties to a ring or an all-gather: single ranks, or hosts whose ranks
// share out heads.
struct Nodes {
  std::vector<std::vector<Span>> queries, keys;  // of each node, in the order of its rows, as cut() leaves them
  PositionMask mask;
  bool tells_positions = false;  // whether calls have rows of one span alone, as they are told where these begin

  int count() const noexcept { return static_cast<int>(queries.size()); }
};

// With queries and keys in each other's place, under the mask that says by whom a key is seen.
Nodes mirrored(const Nodes& nodes);

// Rows that go to a node, or come from it. Those that go are rows of this node's keys, those that come rows of a block.
struct Transfer {
  int node = 0;
  RowRange rows;
};

// A block of keys and values arrives and is computed with, while the block of the next step is under way.
struct Step {
  std::vector<Transfer> sends, receives;
  bool own = false;          // the block is the node's own tensor, and nothing comes
  std::vector<Span> block;   // otherwise, the positions of its rows
  std::vector<Sight> calls;  // of rows of the node's queries and of the block
};
using Schedule = std::vector<Step>;

// A single node, which has the whole sequences: one call without any arithmetic on positions.
Schedule whole_schedule(const Nodes& nodes);
// Each block goes straight from the node that has it to the node whose queries see it, in the order of a ring: in step
// i to the i-th node behind. So a node gets no more than it needs, and passes on nothing that only others need.
Schedule ring_schedule(const Nodes& nodes, int node);
// The same for gradients: with a part of the node's own block at the end, under which what the last of the others get
// goes back to them, and with calls on no more queries than kernels of gradients are fast with.
Schedule gradient_ring_schedule(const Nodes& nodes, int node);
// One block, of all keys that the node's queries see. Spans of different nodes that touch are one there.
Schedule all_gather_schedule(const Nodes& nodes, int node);

// The positions of each rank, and which ranks are of one host.
struct Hosts {
  // Where positions do not matter they are numbered rank by rank, so that the spans of neighbours touch.
  // Packed sequences are numbered as distributed/packed.h has them.
  std::vector<std::vector<Span>> queries, keys;
  PositionMask mask;
  bool tells_positions = false;  // as of nodes
  int ranks_of_host = 1;         // neighbours, among which heads are shared out

  int count() const noexcept { return static_cast<int>(queries.size()) / ranks_of_host; }
  // The rows that a host's ranks have together, as cut() leaves them.
  std::vector<Span> queries_of(int host) const { return of_host(queries, host); }
  std::vector<Span> keys_of(int host) const { return of_host(keys, host); }
  Nodes nodes() const;

 private:
  std::vector<Span> of_host(const std::vector<std::vector<Span>>& of_ranks, int host) const;
};
Hosts hosts_of(const Options& options, int ranks_of_host);

}  // namespace flashjit::distributed
