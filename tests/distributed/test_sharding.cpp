// SPDX-License-Identifier: Apache-2.0
// Which positions ranks have, and that nothing is lost on the way to them and back.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "flashjit/distributed.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;

constexpr Layout kLayouts[] = {Layout::contiguous, Layout::zigzag, Layout::striped};

std::vector<std::int64_t> positions(const std::vector<Span>& spans) {
  std::vector<std::int64_t> all;
  for (const Span& span : spans)
    for (std::int64_t i = 0; i < span.count; ++i) all.push_back(span.first + i * span.step);
  return all;
}

std::size_t fewest_spans(const std::vector<std::int64_t>& of_rank, std::int64_t step) {
  std::size_t spans = of_rank.empty() ? 0 : 1;
  for (std::size_t i = 1; i < of_rank.size(); ++i) spans += of_rank[i] - of_rank[i - 1] != step ? 1 : 0;
  return spans;
}

HostTensor numbered(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), static_cast<double>(i % 251));
  return tensor;
}

std::string refusal(const std::function<void()>& work) {
  std::string message;
  CHECK(tests::code_of(work, &message) == ErrorCode::invalid_argument);
  return message;
}

}  // namespace

TEST_CASE("each position is of one rank, ranks have the same number of them, in order and in few spans") {
  for (const Layout layout : kLayouts)
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (std::int64_t seqlen = 0; seqlen <= 45; ++seqlen) {
        CAPTURE(std::string(to_string(layout)));
        CAPTURE(ranks);
        CAPTURE(seqlen);
        const Sharding sharding(layout, seqlen, ranks);
        std::vector<std::int64_t> all;
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<std::int64_t> own = positions(sharding.spans(rank));
          CHECK(std::is_sorted(own.begin(), own.end()));
          CHECK(static_cast<std::int64_t>(own.size()) == sharding.length(rank));
          CHECK(std::abs(sharding.length(rank) * ranks - seqlen) < 2 * ranks);
          CHECK(sharding.spans(rank).size() == fewest_spans(own, layout == Layout::striped ? ranks : 1));
          all.insert(all.end(), own.begin(), own.end());
        }
        std::sort(all.begin(), all.end());
        std::vector<std::int64_t> wanted(static_cast<std::size_t>(seqlen));
        std::iota(wanted.begin(), wanted.end(), std::int64_t{0});
        CHECK(all == wanted);
      }
}

TEST_CASE("layouts are what their names say") {
  using Spans = std::vector<Span>;
  CHECK(Sharding(Layout::contiguous, 10, 4).spans(1) == Spans{{3, 3, 1}});
  CHECK(Sharding(Layout::zigzag, 16, 4).spans(1) == Spans{{2, 2, 1}, {12, 2, 1}});
  CHECK(Sharding(Layout::zigzag, 16, 4).spans(3) == Spans{{6, 4, 1}});
  CHECK(Sharding(Layout::striped, 10, 4).spans(1) == Spans{{1, 3, 4}});
  CHECK(Sharding(Layout::striped, 2, 4).spans(3).empty());
  // No product of a length and a number of ranks is formed that 64 bits would not hold.
  const std::int64_t longest = INT64_MAX;
  CHECK(Sharding(Layout::contiguous, longest, 1024).spans(1023).back().first == longest - longest / 1024);
}

TEST_CASE("a causal mask is balanced by zigzag and striped parts") {
  const int ranks = 8;
  for (const Layout layout : {Layout::zigzag, Layout::striped}) {
    std::vector<std::int64_t> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<std::int64_t> own = positions(Sharding(layout, 1024, ranks).spans(rank));
      seen.push_back(std::accumulate(own.begin(), own.end(), std::int64_t{0}));
    }
    const auto [least, most] = std::minmax_element(seen.begin(), seen.end());
    CHECK(*most - *least <= *most / 50);
  }
}

TEST_CASE("shards gathered are the tensor, in any dtype and along any dimension") {
  for (const Layout layout : kLayouts)
    for (const int ranks : {1, 2, 3, 8})
      for (const DType dtype : {DType::bf16, DType::f32, DType::e4m3, DType::i64}) {
        const HostTensor rows = numbered(dtype, {2, 13, 3, 8}), lse = numbered(dtype, {2, 3, 13});
        const Sharding sharding(layout, 13, ranks);
        std::vector<HostTensor> shards, lses;
        for (int rank = 0; rank < ranks; ++rank) {
          shards.push_back(shard(rows, sharding, rank));
          lses.push_back(shard(lse, sharding, rank, 2));
          const std::vector<std::int64_t> own = positions(sharding.spans(rank));
          for (std::size_t i = 0; i < own.size(); ++i)  // the second batch entry's second head
            CHECK(load_element(lses.back().data(), dtype, static_cast<std::int64_t>(4 * own.size() + i)) ==
                  load_element(lse.data(), dtype, 4 * 13 + own[i]));
        }
        CHECK(gather(shards, sharding).to_doubles() == rows.to_doubles());
        CHECK(gather(lses, sharding, 2).to_doubles() == lse.to_doubles());
      }
}

TEST_CASE("what cannot be sharded or gathered is refused by name") {
  CHECK(refusal([] { Sharding(Layout::striped, -1, 2); }) == "seqlen: must be 0 or more, was -1");
  CHECK(refusal([] { Sharding(Layout::striped, 1, 0); }) == "ranks: must be 1 or more, was 0");
  CHECK(refusal([] { Sharding(Layout::striped, 1, 2).spans(2); }) == "rank: must be from 0 to 1, was 2");
  CHECK(refusal([] { parse_layout("zig-zag"); }) == "layout: must be contiguous, zigzag or striped, was \"zig-zag\"");
  CHECK(parse_layout("zigzag") == Layout::zigzag);
  const Sharding sharding(Layout::contiguous, 8, 2);
  const HostTensor whole(DType::f32, {1, 8, 2, 8}), half(DType::f32, {1, 4, 2, 8}), other(DType::f16, {1, 4, 2, 8});
  CHECK(refusal([&] { shard(half, sharding, 0); }) == "whole: dimension 1 must be 8 long like the sharding, was 4");
  CHECK(refusal([&] { shard(whole, sharding, 0, 4); }) == "dim: must be from 0 to 3 for whole, was 4");
  CHECK(refusal([&] { gather({half}, sharding); }) == "shards: must be 2, one for each rank, were 1");
  CHECK(refusal([&] {
          gather({half, other}, sharding);
        }) == "shards[1]: dtype must be f32 like that of shards[0], was f16");
  CHECK(refusal([&] { gather({half, whole}, sharding); }) == "shards[1]: shape must be [1, 4, 2, 8], was [1, 8, 2, 8]");
}
