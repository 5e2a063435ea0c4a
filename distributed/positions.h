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

// A call of attention on some rows of queries and of keys, which sees what these see of each other where they stand.
struct Sight {
  std::int64_t queries = 0;  // the first so many: those after them see no key
  RowRange keys;             // those that a query sees
  Window window;             // of the call, aligned bottom-right like any
  double pairs = 0;          // of a query and a key that it sees

  bool is_whole(const Span& of_queries) const noexcept { return queries == of_queries.count; }
};

// Nothing where no query sees a key. mask: over positions, query p sees keys from p - left to p + right. Where it hides
// any, both spans must have the same step.
std::optional<Sight> sight(const Span& queries, const Span& keys, const Window& mask);

// Of the rows of a tensor those at the positions of a span.
struct Piece {
  Span span;
  std::int64_t row = 0;  // of the tensor

  friend bool operator==(const Piece& a, const Piece& b) noexcept { return a.span == b.span && a.row == b.row; }
};

std::int64_t length(const std::vector<Span>& spans);
// Of a tensor with these positions, in this order.
std::vector<Piece> pieces(const std::vector<Span>& spans);
// What any of the queries sees of a tensor with these positions, and not a row more.
std::vector<Piece> seen(const std::vector<Span>& queries, const std::vector<Span>& keys, const Window& mask);
// The positions of several, ascending, where spans of step 1 that touch are one.
std::vector<Span> joined(std::vector<Span> spans);
// Where the positions of a span stand in a tensor that has joined() ones, among which they all are: the row of the
// first, and from each to the next so many rows.
struct RowsOfSpan {
  std::int64_t first = 0, step = 1;
};
RowsOfSpan rows_of(const Span& span, const std::vector<Span>& in);

}  // namespace flashjit::distributed
