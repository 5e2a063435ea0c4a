// SPDX-License-Identifier: Apache-2.0
// What queries at some positions of a sequence see of keys at others: arithmetic on spans, without tensors.
#pragma once

#include <cstdint>
#include <optional>
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

// One call of attention that computes a block: some queries against some keys, under the mask over their positions.
struct Sight {
  std::int64_t queries = 0;  // how many of the queries take part, from the first on; the others see no key
  RowRange keys;             // the keys that at least one query sees
  Window window;             // what the call is given for the mask, aligned bottom-right like any window
  double pairs = 0;          // how many (query, key) pairs the mask leaves
};

// The call for a span of queries and a span of keys; nothing where no query sees a key. mask is over positions: the
// query at p sees the keys from p - left to p + right. If it hides any key, both spans must have the same step.
std::optional<Sight> sight(const Span& queries, const Span& keys, const Window& mask);

// The rows of a tensor that hold the positions of a span.
struct Piece {
  Span span;
  std::int64_t row = 0;  // the first of them

  friend bool operator==(const Piece& a, const Piece& b) noexcept { return a.span == b.span && a.row == b.row; }
};

std::int64_t length(const std::vector<Span>& spans);
// Where a tensor that holds these positions, in this order, has each span.
std::vector<Piece> pieces(const std::vector<Span>& spans);
// Which rows of a tensor that holds the positions keys are seen by at least one of the queries: no row more than that.
std::vector<Piece> seen(const std::vector<Span>& queries, const std::vector<Span>& keys, const Window& mask);
// All positions of the spans, ascending. Spans of step 1 that touch become one.
std::vector<Span> joined(std::vector<Span> spans);
// Rows first, first + step, …
struct RowsOfSpan {
  std::int64_t first = 0, step = 1;
};
// Which rows hold the positions of a span in a tensor that holds the positions in, which are joined() and include them.
RowsOfSpan rows_of(const Span& span, const std::vector<Span>& in);

}  // namespace flashjit::distributed
