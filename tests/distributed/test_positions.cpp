// SPDX-License-Identifier: Apache-2.0
// Calls on parts of a sequence, against what each query sees of each key.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "distributed/positions.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;

bool sees(std::int64_t query, std::int64_t key, const Window& window) {
  return (window.left < 0 || key >= query - window.left) && (window.right < 0 || key <= query + window.right);
}

// Of rows, as positions say.
Pairs wanted(const Span& queries, const Span& keys, const Window& mask) {
  Pairs pairs;
  for (std::int64_t i = 0; i < queries.count; ++i)
    for (std::int64_t j = 0; j < keys.count; ++j)
      if (sees(queries.first + i * queries.step, keys.first + j * keys.step, mask)) pairs.emplace(i, j);
  return pairs;
}

// Of rows, as AttentionOptions::window says of the call.
Pairs found(const Sight& sight) {
  Pairs pairs;
  std::vector<std::int64_t> ends = sight.cu_seqlens;
  if (ends.empty()) ends = {0, sight.queries.count};
  for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
    const bool is_whole = !sight.cu_seqlens.empty();
    const RowRange keys = is_whole ? RowRange{ends[s], ends[s + 1] - ends[s]} : RowRange{0, sight.keys.count};
    const std::int64_t queries = ends[s + 1] - ends[s];
    for (std::int64_t i = 0; i < queries; ++i)
      for (std::int64_t j = 0; j < keys.count; ++j)
        if (sees(i + keys.count - queries, j, sight.window))
          pairs.emplace(sight.queries.first + ends[s] + i, sight.keys.first + keys.first + j);
  }
  return pairs;
}

void expect_same(const Span& queries, const Span& keys, const Window& mask) {
  const Pairs pairs = wanted(queries, keys, mask);
  const std::optional<Sight> view = sight(queries, keys, {mask});
  REQUIRE(view.has_value() == !pairs.empty());
  if (!view) return;
  REQUIRE(found(*view) == pairs);
  REQUIRE(view->pairs == static_cast<double>(pairs.size()));
  REQUIRE((view->window.left >= -1 && view->window.right >= -1));
  std::int64_t first = keys.count, last = 0, last_query = 0;
  for (const auto& [i, j] : pairs)
    first = std::min(first, j), last = std::max(last, j), last_query = std::max(last_query, i);
  REQUIRE(view->keys == RowRange{first, last - first + 1});  // not a key more
  REQUIRE(view->queries == RowRange{0, last_query + 1});
}

}  // namespace

TEST_CASE("a call on two spans sees what their positions see of each other, under every mask") {
  for (const Window mask : {Window{}, Window{-1, 0}, Window{-1, 2}, Window{0, 0}, Window{2, 0}, Window{5, 1},
                            Window{3, 4}, Window{4, -1}, Window{0, -1}, Window{INT64_MAX, 0}})
    for (const std::int64_t step : {1, 2, 3})
      for (std::int64_t first = -3; first <= 14; ++first)
        for (std::int64_t queries = 0; queries <= 5; ++queries)
          for (std::int64_t keys = 0; keys <= 5; ++keys) expect_same({first, queries, step}, {4, keys, step}, mask);
}

TEST_CASE("without a mask spans of different steps see all of each other, as do single positions under any") {
  expect_same({3, 4, 2}, {0, 5, 1}, {});
  for (std::int64_t first = 0; first < 12; ++first) {
    expect_same({first, 1, 1}, {0, 4, 3}, {4, 1});
    expect_same({0, 4, 3}, {first, 1, 1}, {-1, 0});
  }
}

TEST_CASE("causal blocks of contiguous, zigzag and striped shards are causal calls or such without a mask") {
  const auto is_causal = [](const Window& window) { return window == Window{-1, 0}; };
  const PositionMask causal{{-1, 0}};
  CHECK(is_causal(sight({8, 8}, {8, 8}, causal)->window));
  CHECK(sight({8, 8}, {0, 8}, causal)->window == Window{});
  CHECK_FALSE(sight({0, 8}, {8, 8}, causal));
  for (std::int64_t of = 0; of < 4; ++of)
    for (std::int64_t to = 0; to < 4; ++to) {
      const std::optional<Sight> view = sight({of, 8, 4}, {to, 8, 4}, causal);
      CHECK(is_causal(view->window));
      CHECK(view->keys.count == (to <= of ? 8 : 7));
    }
}

TEST_CASE("what queries see of a tensor is no row more than they see") {
  const std::vector<Span> queries{{10, 4, 1}, {30, 4, 1}}, keys{{0, 20, 1}, {24, 8, 1}, {40, 5, 1}};
  CHECK(seen(queries, keys, {3, 0}) == std::vector<Piece>{{{7, 7, 1}, 7}, {{27, 5, 1}, 23}});
  CHECK(seen(queries, keys, {-1, 0}) == std::vector<Piece>{{{0, 20, 1}, 0}, {{24, 8, 1}, 20}});
  // Of one span both ends, of which queries are on either side.
  CHECK(seen({{0, 8, 1}, {24, 8, 1}}, {{8, 16, 1}}, {4, 3}) == std::vector<Piece>{{{8, 3, 1}, 0}, {{20, 4, 1}, 12}});
  CHECK(seen({}, keys, {}).empty());
  CHECK(seen({{0, 1, 1}}, {{5, 3, 1}}, {-1, 0}).empty());
}

TEST_CASE("spans that touch are joined, and rows are found in what was joined") {
  const std::vector<Span> all = joined({{8, 4, 1}, {0, 2, 1}, {2, 3, 1}, {20, 3, 4}, {21, 3, 4}});
  CHECK(all == std::vector<Span>{{0, 5, 1}, {8, 4, 1}, {20, 3, 4}, {21, 3, 4}});
  CHECK(length(all) == 15);
  const std::vector<Piece> tensor = pieces(all), without_gaps = pieces({{0, 9, 1}});
  CHECK(rows_of({2, 3, 1}, tensor).first == 2);
  CHECK(rows_of({9, 2, 1}, tensor).first == 6);
  CHECK(rows_of({24, 2, 4}, tensor).first == 10);
  CHECK(rows_of({21, 3, 4}, tensor).first == 12);
  CHECK(rows_of({1, 2, 3}, without_gaps).first == 1);
  CHECK(rows_of({1, 2, 3}, without_gaps).step == 3);
  CHECK_THROWS_AS(rows_of({6, 1, 1}, tensor), std::logic_error);
  CHECK_THROWS_AS(rows_of({-1, 1, 1}, tensor), std::logic_error);
}

namespace {

const std::vector<std::int64_t> kOffsets{0, 3, 4, 9, 12};

std::size_t sequence_of(std::int64_t position) {
  std::size_t found = 0;
  while (kOffsets[found + 1] <= position) ++found;
  return found;
}

// Of spans of positions, by positions.
Pairs wanted_of_packed(const Span& queries, const Span& keys, const Window& window) {
  Pairs pairs;
  for (std::int64_t i = queries.first; i < queries.first + queries.count; ++i)
    for (std::int64_t j = keys.first; j < keys.first + keys.count; ++j)
      if (sequence_of(i) == sequence_of(j) && sees(i, j, window)) pairs.emplace(i, j);
  return pairs;
}

Pairs found_of_packed(const std::vector<Span>& queries, const std::vector<Span>& keys, const PositionMask& mask) {
  Pairs pairs;
  for (const Span& by : queries)
    for (const Span& of : keys) {
      const std::optional<Sight> view = sight(by, of, mask);
      if (!view) continue;
      const Pairs rows = found(*view);
      REQUIRE(view->pairs == static_cast<double>(rows.size()));
      for (const auto& [i, j] : rows) REQUIRE(pairs.emplace(by.first + i, of.first + j).second);
      const std::int64_t query = by.first + view->queries.first, key = of.first + view->keys.first;
      REQUIRE(view->first_query == query - kOffsets[sequence_of(query)]);
      REQUIRE(view->first_key == key - kOffsets[sequence_of(key)]);
    }
  return pairs;
}

}  // namespace

TEST_CASE("queries of packed sequences see keys of their own alone, whatever parts of them are in a span") {
  const Sequences sequences(kOffsets);
  for (const Window window : {Window{}, Window{-1, 0}, Window{2, 0}, Window{1, 1}, Window{3, -1}})
    for (std::int64_t first = 0; first < 12; ++first)
      for (std::int64_t count = 1; first + count <= 12; ++count)
        for (const Span keys : {Span{first, count}, Span{0, 12}, Span{0, 7}, Span{5, 3}, Span{4, 8}, Span{11, 1}}) {
          const Span queries{first, count};
          REQUIRE(found_of_packed(cut({queries}, sequences), cut({keys}, sequences), {window, sequences}) ==
                  wanted_of_packed(queries, keys, window));
        }
}

TEST_CASE("spans of packed sequences are cut where one is not whole, and whole ones stay together") {
  const Sequences sequences(kOffsets);
  CHECK(cut({{1, 9}}, sequences) == std::vector<Span>{{1, 2}, {3, 6}, {9, 1}});
  CHECK(cut({{0, 12}}, sequences) == std::vector<Span>{{0, 12}});
  CHECK(cut({{5, 2}, {9, 3}}, sequences) == std::vector<Span>{{5, 2}, {9, 3}});
  CHECK(cut({{0, 12, 3}}, {}) == std::vector<Span>{{0, 12, 3}});
  CHECK_THROWS_AS(sight({1, 9}, {0, 12}, {{}, sequences}), std::logic_error);
}

namespace {

Sight at_rows(Sight sight, std::int64_t query, std::int64_t key) {
  sight.queries.first += query;
  sight.keys.first += key;
  return sight;
}

std::vector<Sight> calls_on(const std::vector<Span>& queries, const std::vector<Span>& keys, const Window& mask) {
  std::vector<Sight> calls;
  for (const Piece& by : pieces(queries))
    for (const Piece& of : pieces(keys))
      if (const std::optional<Sight> view = sight(by.span, of.span, {mask}))
        calls.push_back(at_rows(*view, by.row, of.row));
  return calls;
}

// With how often each is computed: more than once would be wrong, too.
std::multiset<std::pair<std::int64_t, std::int64_t>> computed(const std::vector<Sight>& calls) {
  std::multiset<std::pair<std::int64_t, std::int64_t>> pairs;
  for (const Sight& call : calls) {
    const Pairs of = found(call);
    CHECK(call.pairs == static_cast<double>(of.size()));
    pairs.insert(of.begin(), of.end());
  }
  return pairs;
}

}  // namespace

TEST_CASE("calls that are joined see what they saw one by one") {
  std::size_t calls_before = 0, calls_behind = 0;
  for (const Window mask : {Window{}, Window{-1, 0}, Window{-1, 2}, Window{0, 0}, Window{2, 0}, Window{5, 1},
                            Window{4, -1}, Window{9, 0}, Window{INT64_MAX, 0}})
    for (std::int64_t first = 0; first <= 4; ++first)
      for (std::int64_t second = 6; second <= 12; ++second)
        for (std::int64_t key = 0; key <= 5; ++key)
          for (std::int64_t count = 1; count <= 3; ++count) {
            const std::vector<Span> queries{{first, 2, 1}, {second, 3, 1}}, keys{{key, count, 1}, {key + 6, 3, 1}};
            const std::vector<Sight> calls = calls_on(queries, keys, mask), joined = joined_calls(calls);
            REQUIRE(computed(joined) == computed(calls));
            calls_before += calls.size();
            calls_behind += joined.size();
          }
  CHECK(3 * calls_behind < 2 * calls_before);
}

TEST_CASE("a block of causal zigzag shards is one call, whoever's it is") {
  constexpr int kRanks = 4;
  constexpr std::int64_t kPart = 6;
  const auto spans_of = [](int rank) {
    return std::vector<Span>{{rank * kPart, kPart, 1}, {(2 * kRanks - 1 - rank) * kPart, kPart, 1}};
  };
  for (int rank = 0; rank < kRanks; ++rank)
    for (int other = 0; other < kRanks; ++other)
      CHECK(joined_calls(calls_on(spans_of(rank), spans_of(other), {-1, 0})).size() == 1);
  CHECK(joined_calls(calls_on(spans_of(1), spans_of(1), {-1, 0})).front().window == Window{-1, 0});
}

TEST_CASE("a call is cut by queries, and its parts see what it saw") {
  for (const Window mask : {Window{}, Window{-1, 0}, Window{-1, 2}, Window{2, 0}, Window{5, 1}, Window{4, -1}})
    for (std::int64_t first = 0; first <= 8; ++first)
      for (std::int64_t row = 1; row < 7; ++row) {
        const std::optional<Sight> whole = sight({first, 7, 1}, {3, 9, 1}, {mask});
        if (!whole) continue;
        const Sight call = at_rows(*whole, 10, 20);
        std::vector<Sight> parts;
        for (const RowRange rows : {RowRange{10, row}, RowRange{10 + row, call.queries.count - row}})
          if (const std::optional<Sight> part = rows.count > 0 ? of_queries(call, rows) : std::nullopt) {
            parts.push_back(*part);
            CHECK(part->first_query == call.first_query + rows.first - 10);
            CHECK(part->first_key == call.first_key + part->keys.first - call.keys.first);
          }
        if (row < call.queries.count) REQUIRE(computed(parts) == computed({call}));
      }
}
