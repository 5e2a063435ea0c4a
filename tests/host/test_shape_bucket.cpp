// SPDX-License-Identifier: Apache-2.0
// The buckets of shapes: where one ends, how they are spelled, and which defaults they have.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "flashjit/error.h"
#include "flashjit/problem.h"

namespace {

using namespace flashjit;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

QueryRange queries(std::int64_t seqlen_q) { return shape_bucket({1, seqlen_q, 1, 1, 1}, 132).queries; }
KeyRange keys(std::int64_t seqlen_kv) { return shape_bucket({1, 1, seqlen_kv, 1, 1}, 132).keys; }
// Of so many batch entries of one tile each.
WorkRange work(std::int64_t tiles, int sm_count = 132) { return shape_bucket({tiles, 1, 1, 1, 1}, sm_count).work; }

std::string refusal(const std::string& text) {
  try {
    parse_shape_bucket(text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the boundaries of queries and keys") {
  CHECK(queries(0) == QueryRange::up_to_16);
  CHECK(queries(16) == QueryRange::up_to_16);
  CHECK(queries(17) == QueryRange::up_to_64);
  CHECK(queries(64) == QueryRange::up_to_64);
  CHECK(queries(65) == QueryRange::up_to_128);
  CHECK(queries(128) == QueryRange::up_to_128);
  CHECK(queries(129) == QueryRange::more);
  CHECK(queries(kHuge) == QueryRange::more);
  CHECK(keys(0) == KeyRange::below_1k);
  CHECK(keys(1023) == KeyRange::below_1k);
  CHECK(keys(1024) == KeyRange::below_2k);
  CHECK(keys(2047) == KeyRange::below_2k);
  CHECK(keys(2048) == KeyRange::below_8k);
  CHECK(keys(8191) == KeyRange::below_8k);
  CHECK(keys(8192) == KeyRange::more);
  CHECK(keys(kHuge) == KeyRange::more);
}

TEST_CASE("few rows are queries of all heads that share a tile") {
  const auto queries_of = [](std::int64_t seqlen_q, std::int64_t heads_q, std::int64_t heads_kv) {
    return shape_bucket({1, seqlen_q, 4096, heads_q, heads_kv}, 132).queries;
  };
  CHECK(queries_of(4, 32, 8) == QueryRange::up_to_16);
  CHECK(queries_of(5, 32, 8) == QueryRange::up_to_64);
  CHECK(queries_of(1, 64, 1) == QueryRange::up_to_16);  // at most 16 share one
  CHECK(queries_of(2, 64, 1) == QueryRange::up_to_64);
  CHECK(queries_of(16, 28, 4) == QueryRange::up_to_16);  // groups of 7 cannot be divided
  CHECK(queries_of(8, 24, 4) == QueryRange::up_to_16);   // groups of 6 in three pairs
  CHECK(queries_of(9, 24, 4) == QueryRange::up_to_64);
  CHECK(queries_of(kHuge, kHuge, 1) == QueryRange::more);
}

TEST_CASE("the boundaries of work, in tiles for each SM") {
  CHECK(work(0) == WorkRange::up_to_half);
  CHECK(work(66) == WorkRange::up_to_half);
  CHECK(work(67) == WorkRange::up_to_1);
  CHECK(work(132) == WorkRange::up_to_1);
  CHECK(work(133) == WorkRange::up_to_2);
  CHECK(work(264) == WorkRange::up_to_2);
  CHECK(work(265) == WorkRange::up_to_4);
  CHECK(work(528) == WorkRange::up_to_4);
  CHECK(work(529) == WorkRange::more);
  CHECK(work(3, 7) == WorkRange::up_to_half);
  CHECK(work(4, 7) == WorkRange::up_to_1);
  CHECK(work(1, 1) == WorkRange::up_to_1);
}

TEST_CASE("tiles are of 128 queries, of all heads and batch entries") {
  const auto work_of = [](std::int64_t batch, std::int64_t heads, std::int64_t seqlen_q) {
    return shape_bucket({batch, seqlen_q, 1, heads, heads}, 132).work;
  };
  CHECK(work_of(1, 1, 132 * 128) == WorkRange::up_to_1);
  CHECK(work_of(1, 1, 132 * 128 + 1) == WorkRange::up_to_2);
  CHECK(work_of(2, 33, 256) == WorkRange::up_to_1);
  CHECK(work_of(2, 33, 257) == WorkRange::up_to_2);
  CHECK(work_of(4, 132, 1) == WorkRange::up_to_4);
  CHECK(work_of(0, 132, 1024) == WorkRange::up_to_half);
}

TEST_CASE("heads of a group share tiles where that makes fewer") {
  // 132 SMs: 67 tiles are more than half of one for each, 133 more than one.
  const auto work_of = [](std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seqlen_q) {
    return shape_bucket({batch, seqlen_q, 4096, heads_q, heads_kv}, 132).work;
  };
  CHECK(work_of(16, 32, 8, 1) == WorkRange::up_to_1);   // 128, of four heads each
  CHECK(work_of(16, 32, 32, 1) == WorkRange::up_to_4);  // 512
  CHECK(work_of(33, 8, 1, 1) == WorkRange::up_to_half);
  CHECK(work_of(2, 64, 1, 1) == WorkRange::up_to_half);  // at most 16 share one: 8 tiles
  CHECK(work_of(17, 64, 1, 1) == WorkRange::up_to_1);    // 68
  CHECK(work_of(10, 28, 4, 1) == WorkRange::up_to_4);    // groups of 7 cannot be divided: 280
  CHECK(work_of(10, 24, 4, 1) == WorkRange::up_to_1);    // groups of 6 in three pairs: 120
  CHECK(work_of(16, 32, 8, 32) == WorkRange::up_to_1);
  CHECK(work_of(16, 32, 8, 64) == WorkRange::up_to_2);  // two heads fill a tile: 256
  CHECK(work_of(16, 32, 8, 65) == WorkRange::up_to_4);  // three tiles of four heads: 384
  CHECK(work_of(16, 32, 8, 128) == WorkRange::up_to_4);
}

TEST_CASE("no size is too large") {
  for (const int sm_count : {1, 132, std::numeric_limits<int>::max()}) {
    CHECK(shape_bucket({kHuge, kHuge, kHuge, kHuge, kHuge}, sm_count).work == WorkRange::more);
    CHECK(shape_bucket({kHuge, 1, 1, 1, 1}, sm_count).work == WorkRange::more);
    CHECK(shape_bucket({1, kHuge, 1, 1, 1}, sm_count).work == WorkRange::more);
  }
  const int sm_count = std::numeric_limits<int>::max();
  CHECK(work(std::int64_t{4} * sm_count, sm_count) == WorkRange::up_to_4);
  CHECK(work(std::int64_t{4} * sm_count + 1, sm_count) == WorkRange::more);
}

TEST_CASE("there are 80 buckets, each with one spelling that is read back") {
  const std::vector<ShapeBucket> buckets = shape_buckets();
  std::set<std::string> spellings;
  for (const ShapeBucket& bucket : buckets) {
    CHECK(parse_shape_bucket(to_string(bucket)) == bucket);
    spellings.insert(to_string(bucket));
  }
  CHECK(buckets.size() == 80);
  CHECK(spellings.size() == 80);
  CHECK(to_string(ShapeBucket{QueryRange::up_to_16, KeyRange::below_1k, WorkRange::up_to_half}) == "q16-kv1k-w05");
  CHECK(to_string(ShapeBucket{QueryRange::up_to_128, KeyRange::below_8k, WorkRange::up_to_2}) == "q128-kv8k-w2");
  CHECK(to_string(ShapeBucket{}) == "qmore-kvmore-wmore");
}

TEST_CASE("other texts are no buckets") {
  for (const char* text : {"", "q64", "q64-kv1k", "q64-kv1k-w0", "q64-kv1k-w05-", " q64-kv1k-w05", "Q64-kv1k-w05",
                           "q64-kv4k-w05", "q?-kv1k-w05"}) {
    CHECK(refusal(text) == std::string("bucket: must be like q16-kv1k-w05 or qmore-kv8k-w2, was ") + text);
  }
}
