// SPDX-License-Identifier: Apache-2.0
// Masks that options ask for: the problem that they make, and the keys that a query sees.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "flashjit/attention.h"
#include "flashjit/error.h"
#include "runtime/call/masks.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using runtime::Masks;
using runtime::masks_of;
using tests::code_of;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(),
                       kLeast = std::numeric_limits<std::int64_t>::min();

AttentionOptions with(const Window& window, bool causal = false) {
  AttentionOptions options;
  options.causal = causal;
  options.window = window;
  return options;
}

bool are(const Masks& masks, bool causal, const Window& window) {
  return masks.causal == causal && masks.window == window;
}

bool sees(const AttentionOptions& options, std::int64_t own, std::int64_t key) {
  const bool too_far_left = options.window.left >= 0 && own - key > options.window.left;
  const bool too_far_right = options.window.right >= 0 && key - own > options.window.right;
  const bool in_other_chunk = options.chunk > 0 && own / options.chunk != key / options.chunk;
  return !too_far_left && !too_far_right && !in_other_chunk && !(options.causal && key > own);
}

// By asking of each key whether one of the queries sees it: those from a query on of as many as there are keys.
std::int64_t counted_keys(const AttentionOptions& options, std::int64_t queries, std::int64_t seqlen) {
  std::int64_t most = 0;
  for (std::int64_t query = 0; query + queries <= seqlen; ++query) {
    std::int64_t first = seqlen, last = -1;
    for (std::int64_t own = query; own < query + queries; ++own)
      for (std::int64_t key = 0; key < seqlen; ++key)
        if (sees(options, own, key)) first = std::min(first, key), last = std::max(last, key);
    most = std::max(most, last + 1 - first);
  }
  return most;
}

}  // namespace

TEST_CASE("each mask is said in one way") {
  CHECK(are(masks_of({}), false, {-1, -1}));
  CHECK(are(masks_of(with({-1, -1}, true)), true, {-1, -1}));
  CHECK(are(masks_of(with({5, 3})), false, {5, 3}));
  CHECK(are(masks_of(with({5, -1})), false, {5, -1}));
  CHECK(are(masks_of(with({0, 1})), false, {0, 1}));
  CHECK(are(masks_of(with({kMost, kMost})), false, {kMost, kMost}));
  for (const std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{7}, kMost}) {
    CAPTURE(right);
    CHECK(are(masks_of(with({5, right}, true)), true, {5, -1}));
    CHECK(are(masks_of(with({-1, right}, true)), true, {-1, -1}));
  }
}

TEST_CASE("a window that ends at the query's own key is a causal mask") {
  CHECK(are(masks_of(with({5, 0})), true, {5, -1}));
  CHECK(are(masks_of(with({0, 0})), true, {0, -1}));
  CHECK(are(masks_of(with({-1, 0})), true, {-1, -1}));
  CHECK_FALSE(masks_of(with({-1, 0})).has_window());
}

TEST_CASE("a side below -1 is named with what it was") {
  const auto refusal = [](const Window& window) {
    std::string message;
    CHECK(code_of([&] { masks_of(with(window)); }, &message) == ErrorCode::invalid_argument);
    std::string of_others;
    CHECK(code_of([&] { problem_of(DType::bf16, 64, 64, with(window)); }, &of_others) == ErrorCode::invalid_argument);
    CHECK(of_others == message);
    CHECK(code_of([&] { keys_of_query(with(window, true), 9); }, &of_others) == ErrorCode::invalid_argument);
    CHECK(of_others == message);
    return message;
  };
  CHECK(refusal({-2, 0}) == "window: left must be at least 0, or -1 for all keys, was -2");
  CHECK(refusal({0, -2}) == "window: right must be at least 0, or -1 for all keys, was -2");
  CHECK(refusal({-1, kLeast}) == "window: right must be at least 0, or -1 for all keys, was -9223372036854775808");
  CHECK(refusal({kLeast, kLeast}) == "window: left must be at least 0, or -1 for all keys, was -9223372036854775808");
}

TEST_CASE("a chunk below 0 is named with what it was") {
  const auto refusal = [](std::int64_t chunk) {
    AttentionOptions options;
    options.chunk = chunk;
    std::string message, of_others;
    CHECK(code_of([&] { masks_of(options); }, &message) == ErrorCode::invalid_argument);
    CHECK(code_of([&] { problem_of(DType::bf16, 64, 64, options); }, &of_others) == ErrorCode::invalid_argument);
    CHECK(of_others == message);
    CHECK(code_of([&] { keys_of_query(options, 9); }, &of_others) == ErrorCode::invalid_argument);
    CHECK(of_others == message);
    return message;
  };
  CHECK(refusal(-1) == "chunk: must be at least 1, or 0 for none, was -1");
  CHECK(refusal(kLeast) == "chunk: must be at least 1, or 0 for none, was -9223372036854775808");
}

TEST_CASE("the problem of options has chunks of any size, and none where there are none") {
  for (const bool causal : {false, true}) {
    Problem expected{DType::f16, 192, 128, causal};
    AttentionOptions options = with({}, causal);
    CHECK(problem_of(DType::f16, 192, 128, options) == expected);
    expected.chunk = true;
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{1000}, kMost}) {
      options.chunk = chunk;
      CHECK(masks_of(options).chunk == chunk);
      CHECK(problem_of(DType::f16, 192, 128, options) == expected);
    }
  }
}

TEST_CASE("in chunks a query sees no more keys than one has, and no more than a window shows") {
  const auto keys = [](std::int64_t chunk, const Window& window, std::int64_t seqlen_kv) {
    AttentionOptions options = with(window);
    options.chunk = chunk;
    return keys_of_query(options, seqlen_kv);
  };
  CHECK(keys(100, {}, 4096) == 100);
  CHECK(keys(1, {}, 4096) == 1);
  CHECK(keys(5000, {}, 4096) == 4096);
  CHECK(keys(kMost, {}, 4096) == 4096);
  CHECK(keys(100, {}, 0) == 0);
  CHECK(keys(100, {9, 0}, 4096) == 10);
  CHECK(keys(100, {999, 0}, 4096) == 100);
  CHECK(keys(100, {kMost, kMost}, 4096) == 100);
}

TEST_CASE("the problem of options has a window of any size, and none where all keys are seen") {
  const auto problem = [](const AttentionOptions& options) { return problem_of(DType::f16, 192, 128, options); };
  const Problem full{DType::f16, 192, 128}, causal{DType::f16, 192, 128, true},
      window{DType::f16, 192, 128, false, true}, causal_window{DType::f16, 192, 128, true, true};
  CHECK(problem({}) == full);
  CHECK(problem(with({-1, -1}, true)) == causal);
  CHECK(problem(with({-1, 0})) == causal);
  CHECK(problem(with({-1, 9}, true)) == causal);
  for (const std::int64_t keys : {std::int64_t{1}, std::int64_t{1000}, kMost}) {
    CAPTURE(keys);
    CHECK(problem(with({keys, keys})) == window);
    CHECK(problem(with({-1, keys})) == window);
    CHECK(problem(with({keys, -1})) == window);
    CHECK(problem(with({keys, 0})) == causal_window);
    CHECK(problem(with({keys, keys}, true)) == causal_window);
  }
}

TEST_CASE("the problem of options is a legal one") {
  std::string message;
  CHECK(code_of([] { problem_of(DType::bf16, 12, 64, {}); }, &message) == ErrorCode::invalid_argument);
  CHECK(message == "head_dim: must be a multiple of 8 from 8 to 576, was 12");
  CHECK(code_of([] { problem_of(DType::f32, 64, 64, {}); }) == ErrorCode::invalid_argument);
}

TEST_CASE("the keys of a query are those that the query with the most sees, where there are queries enough") {
  const std::int64_t sides[] = {-1, 0, 1, 2, 5, 8, 9, 30};
  for (const std::int64_t seqlen_kv : {1, 2, 9, 10}) {
    for (const std::int64_t left : sides) {
      for (const std::int64_t right : sides) {
        for (const bool causal : {false, true}) {
          const AttentionOptions options = with({left, right}, causal);
          CAPTURE(seqlen_kv);
          CAPTURE(left);
          CAPTURE(right);
          CAPTURE(causal);
          CHECK(keys_of_query(options, seqlen_kv) == counted_keys(options, 1, seqlen_kv));
        }
      }
    }
  }
}

TEST_CASE("neighbouring queries see no more keys than is said, and as many where masks allow") {
  constexpr std::int64_t kSeqlen = 40;
  for (const std::int64_t left : {-1, 0, 3, 11}) {
    for (const std::int64_t right : {-1, 0, 2, 9}) {
      for (const std::int64_t chunk : {0, 1, 4, 7, 12, 39, 41}) {
        for (const bool causal : {false, true}) {
          for (const std::int64_t queries : {1, 2, 4, 5, 9}) {
            AttentionOptions options = with({left, right}, causal);
            options.chunk = chunk;
            CAPTURE(left);
            CAPTURE(right);
            CAPTURE(chunk);
            CAPTURE(causal);
            CAPTURE(queries);
            const std::int64_t counted = counted_keys(options, queries, kSeqlen);
            const std::int64_t told = runtime::keys_of_queries(masks_of(options), queries, kSeqlen);
            CHECK(told >= counted);
            if (chunk == 0 || options.window == Window()) CHECK(told == counted);
          }
        }
      }
    }
  }
}

TEST_CASE("no number is too large to say how many keys queries see") {
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{1}, kMost}) {
    for (const Window& window : {Window{}, Window{kMost, kMost}, Window{0, kMost}, Window{kMost, 0}}) {
      AttentionOptions options = with(window);
      options.chunk = chunk;
      const std::int64_t told = runtime::keys_of_queries(masks_of(options), 64, kMost);
      CHECK(told >= 64);
      CHECK(runtime::keys_of_queries(masks_of(options), 64, 5) == 5);
    }
  }
}

TEST_CASE("without a window the keys of a query are all, and never more than there are") {
  constexpr std::int64_t kLongest = std::int64_t{1} << 30;
  CHECK(keys_of_query({}, kLongest) == kLongest);
  CHECK(keys_of_query(with({-1, -1}, true), 100) == 100);
  CHECK(keys_of_query(with({-1, 0}), 100) == 100);
  CHECK(keys_of_query(with({1023, 0}), 4096) == 1024);
  CHECK(keys_of_query(with({1023, 77}, true), 4096) == 1024);
  CHECK(keys_of_query(with({64, 63}), 4096) == 128);
  CHECK(keys_of_query(with({64, -1}), 4096) == 4096);
  CHECK(keys_of_query(with({1023, 0}), 0) == 0);
  for (const Window& window : {Window{kMost, kMost}, Window{kMost, -1}, Window{kMost, 0}, Window{0, kMost}})
    CHECK(keys_of_query(with(window), kLongest) == kLongest);
}
