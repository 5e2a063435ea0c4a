// SPDX-License-Identifier: Apache-2.0
// What queries at some positions of a sequence see of keys at others: arithmetic on spans, without tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "flashjit/attention.h"
#include "flashjit/distributed.h"

namespace flashjit::distributed {

// Rows of a tensor, one after the other.
struct RowRange {
  std::int64_t first = 0, count = 0;

  friend bool operator==(const RowRange& a, const RowRange& b) noexcept {
    return a.first == b.first && a.count == b.count;
  }
};

// Sequences one behind the other, by position. Without offsets all positions are of one sequence.
class Sequences {
 public:
  Sequences() = default;
  // Where each begins, and where the last one ends: ascending, and none is empty.
  explicit Sequences(std::vector<std::int64_t> offsets) : offsets_(std::move(offsets)) {}

  std::size_t at(std::int64_t position) const;  // the number of the sequence there
  std::int64_t begin(std::size_t sequence) const;
  std::int64_t origin(std::size_t sequence) const;  // what its positions are counted from: where it begins, or 0
  std::int64_t end(std::size_t sequence) const;

 private:
  std::vector<std::int64_t> offsets_;
};

// Which keys queries see: those of their own sequence within a window. The query at p sees the keys from p - left to p
// + right.
struct PositionMask {
  Window window = {};
  Sequences sequences = {};
  std::int64_t query_shift = 0;  // the position of the first of all queries
};

// One call of attention that computes a block: some queries against some keys, under the mask over their positions.
struct Sight {
  RowRange queries;  // those that take part; the others see no key
  RowRange keys;     // the keys that at least one query sees
  Window window;     // what the call is given for the mask, aligned bottom-right like any window
  double pairs = 0;  // how many (query, key) pairs the mask leaves
  // How far the first query of these is behind the first query of its sequence, and the first key behind the first key.
  std::int64_t first_query = 0, first_key = 0;
  // Of a call with several sequences: the rows at which each begins, of queries and of keys, and their number.
  std::vector<std::int64_t> cu_seqlens = {};
};

// Query row i sees the key rows from i + low to i + high, of those that there are.
struct Band {
  static constexpr std::int64_t kFar = std::int64_t{1} << 60;  // from which on no row is hidden; sums are no overflow
  std::int64_t low = -kFar, high = kFar;
};
// The call for rows that see each other as a band says; nothing where no query sees a key. Its positions are those of
// the first rows.
std::optional<Sight> sight_of(const RowRange& queries, const RowRange& keys, const Band& band);
// The other way around. The call must be of a single sequence.
Band band_of(const Sight& sight);

// The call for a span of queries and a span of keys; nothing where no query sees a key. If the window hides any key,
// both spans must have the same step. Each must be within a sequence, or of whole ones: see cut().
std::optional<Sight> sight(const Span& queries, const Span& keys, const PositionMask& mask);
// What of a call some of its queries have; nothing where they see no key.
std::optional<Sight> of_queries(const Sight& sight, const RowRange& queries);
// Calls one behind the other become one where a single window says what both see: so a block of zigzag shards is one
// call. Not of several sequences, and not where functions are told of positions, which rows of a call must then have
// one after the other.
std::vector<Sight> joined_calls(const std::vector<Sight>& calls);

// The rows of a tensor that hold the positions of a span.
struct Piece {
  Span span;
  std::int64_t row = 0;  // the first of them

  friend bool operator==(const Piece& a, const Piece& b) noexcept { return a.span == b.span && a.row == b.row; }
};

std::int64_t length(const std::vector<Span>& spans);
// Where a tensor that holds these positions, in this order, has each span.
std::vector<Piece> pieces(const std::vector<Span>& spans);

// Pieces in the order of their positions, each as cut() leaves it: those which may see a span are neighbours, and are
// found by halving however many there are.
class OrderedPieces {
 public:
  // sequences: which must outlive this.
  OrderedPieces(std::vector<Piece> pieces, const Sequences& sequences);

  // Those with positions of the sequences of which the span has positions.
  std::span<const Piece> beside(const Span& span) const;

 private:
  const Sequences& sequences_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> first_, last_;  // of each, the numbers of its sequences
};

// Which rows of a tensor that holds the positions keys are seen by at least one of the queries: no row more than that.
// Both ascend.
std::vector<Piece> seen(const std::vector<Span>& queries, const std::vector<Span>& keys, const PositionMask& mask);
// All positions of the spans, ascending. Spans of step 1 that touch become one.
std::vector<Span> joined(std::vector<Span> spans);
// The same positions, in spans that are each within a sequence, or of whole ones.
std::vector<Span> cut(const std::vector<Span>& spans, const Sequences& sequences);
// Rows first, first + step, …
struct RowsOfSpan {
  std::int64_t first = 0, step = 1;
};
// Which rows hold the positions of a span in a tensor of these pieces, which are those of joined() spans, cut or not,
// and include them.
RowsOfSpan rows_of(const Span& span, const std::vector<Piece>& in);

}  // namespace flashjit::distributed
