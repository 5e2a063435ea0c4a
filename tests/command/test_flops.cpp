// SPDX-License-Identifier: Apache-2.0
// Operations that rates are counted by.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "cli/io/flops.h"

namespace {

using namespace flashjit;
using cli::forward_flops;

AttentionOptions masks(const Window& window, bool causal = false) {
  AttentionOptions options;
  options.causal = causal;
  options.window = window;
  return options;
}

AttentionOptions with_chunk(AttentionOptions options, std::int64_t chunk) {
  options.chunk = chunk;
  return options;
}

// As the options are documented.
bool is_seen(const AttentionOptions& options, std::int64_t position, std::int64_t key) {
  if (options.causal && key > position) return false;
  if (options.window.left >= 0 && key < position - options.window.left) return false;
  if (options.window.right >= 0 && key > position + options.window.right) return false;
  return options.chunk == 0 || (position >= 0 && position / options.chunk == key / options.chunk);
}

int count_pairs(const AttentionOptions& options, std::int64_t queries, std::int64_t keys) {
  int pairs = 0;
  for (std::int64_t row = 0; row < queries; ++row)
    for (std::int64_t key = 0; key < keys; ++key) pairs += is_seen(options, row + keys - queries, key);
  return pairs;
}

}  // namespace

TEST_CASE("a causal mask counts as half") {
  const Dims q{2, 100, 4, 64};
  CHECK(forward_flops(q, 300, 32, false) == 2.0 * 2 * 4 * 100 * 300 * (64 + 32));
  CHECK(forward_flops(q, 300, 32, true) == forward_flops(q, 300, 32, false) / 2);
  CHECK(forward_flops(q, 300, 32, masks({})) == forward_flops(q, 300, 32, false));
  CHECK(forward_flops(q, 300, 32, masks({}, true)) == forward_flops(q, 300, 32, true));
  CHECK(forward_flops(q, 300, 32, masks({-1, 0})) == forward_flops(q, 300, 32, true));
  CHECK(forward_flops(q, 300, 32, masks({-1, 7}, true)) == forward_flops(q, 300, 32, true));
}

TEST_CASE("under a window the pairs that it shows count, wherever it is cut off") {
  const auto pairs = [](std::int64_t queries, std::int64_t keys, const AttentionOptions& options) {
    return forward_flops({3, queries, 2, 64}, keys, 64, options) / (2.0 * 3 * 2 * 128);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(pairs(4, 10, masks({2, 0})) == 4 * 3);
  CHECK(pairs(10, 10, masks({2, 0})) == 1 + 2 + 8 * 3);
  CHECK(pairs(10, 10, masks({2, 1})) == 2 + 3 + 7 * 4 + 3);
  CHECK(pairs(10, 10, masks({2, 1}, true)) == pairs(10, 10, masks({2, 0})));
  CHECK(pairs(5, 3, masks({0, 0})) == 3);  // the first two rows see no key
  CHECK(pairs(5, 3, masks({-1, 1})) == 0 + 1 + 2 + 3 + 3);
  CHECK(pairs(7, 9, masks({kMost, kMost})) == 63);
  CHECK(pairs(7, 9, with_chunk(masks({kMost, kMost}), kMost)) == 63);
}

TEST_CASE("what counts under a window and chunks are the pairs, counted one by one") {
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{1, 9}, {5, 9}, {9, 9}, {9, 4}, {7, 0}})
    for (const bool causal : {false, true})
      for (const std::int64_t left : {-1, 0, 2, 20})
        for (const std::int64_t right : {-1, 0, 1, 20})
          for (const std::int64_t chunk : {0, 1, 3, 4, 9, 20}) {
            const AttentionOptions options = with_chunk(masks({left, right}, causal), chunk);
            if (chunk == 0 && left < 0 && (causal || right <= 0)) continue;  // whole, or half by convention
            CAPTURE(to_string(Dims{queries, keys, causal, left, right, chunk}));
            CHECK(forward_flops({1, queries, 1, 8}, keys, 8, options) ==
                  2.0 * 16 * count_pairs(options, queries, keys));
          }
}
