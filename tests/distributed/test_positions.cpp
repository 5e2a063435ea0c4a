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
  for (std::int64_t i = 0; i < sight.queries; ++i)
    for (std::int64_t j = 0; j < sight.keys.count; ++j)
      if (sees(i + sight.keys.count - sight.queries, j, sight.window)) pairs.emplace(i, sight.keys.first + j);
  return pairs;
}

void expect_same(const Span& queries, const Span& keys, const Window& mask) {
  const Pairs pairs = wanted(queries, keys, mask);
  const std::optional<Sight> view = sight(queries, keys, mask);
  REQUIRE(view.has_value() == !pairs.empty());
  if (!view) return;
  REQUIRE(found(*view) == pairs);
  REQUIRE(view->pairs == static_cast<double>(pairs.size()));
  REQUIRE((view->window.left >= -1 && view->window.right >= -1));
  std::int64_t first = keys.count, last = 0, last_query = 0;
  for (const auto& [i, j] : pairs)
    first = std::min(first, j), last = std::max(last, j), last_query = std::max(last_query, i);
  REQUIRE(view->keys == RowRange{first, last - first + 1});  // not a key more
  REQUIRE(view->queries == last_query + 1);
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
  const Window causal{-1, 0};
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
  CHECK(rows_of({2, 3, 1}, all).first == 2);
  CHECK(rows_of({9, 2, 1}, all).first == 6);
  CHECK(rows_of({24, 2, 4}, all).first == 10);
  CHECK(rows_of({21, 3, 4}, all).first == 12);
  CHECK(rows_of({1, 2, 3}, {{0, 9, 1}}).first == 1);
  CHECK(rows_of({1, 2, 3}, {{0, 9, 1}}).step == 3);
  CHECK_THROWS_AS(rows_of({6, 1, 1}, all), std::logic_error);
}
