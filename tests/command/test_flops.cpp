// SPDX-License-Identifier: Apache-2.0
// Operations that rates are counted by.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

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
}
