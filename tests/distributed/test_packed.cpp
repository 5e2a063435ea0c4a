// SPDX-License-Identifier: Apache-2.0
// Packed sequences over several GPUs: who has which tokens, and attention and gradients of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "distributed/plan.h"
#include "tests/distributed/attention_case.h"
#include "tests/distributed/gradient_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"
#include "tests/support/sample.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr std::chrono::seconds kTimeout{60};
constexpr Scheme kSchemes[] = {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level};

Engine& engine() { return tests::engine_for("sm_80"); }

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

// One sequence that is most of all tokens, many alike, empty ones, and nothing else.
const std::vector<std::vector<std::int64_t>> kLengths = {
    {40, 3, 0, 7, 1, 20, 2, 2, 9}, {64}, {5, 5, 5, 5, 5, 5, 5, 5}, {0, 0, 30, 30, 0}, {1, 2, 1, 3}, {0},
};

AttentionCase packed_case(Scheme scheme, Layout layout, int ranks, const std::vector<std::int64_t>& lengths,
                          const Window& window = {-1, 0}) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = layout;
  of.ranks = ranks;
  of.ranks_of_host = scheme == Scheme::two_level && ranks % 2 == 0 ? 2 : 0;
  of.cu_seqlens = offsets_of(lengths);
  of.seqlen_q = of.seqlen_kv = of.cu_seqlens.back();
  of.num_heads_q = 2 * ranks;
  of.num_heads_kv = ranks;
  of.options.window = window;
  return of;
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const std::vector<std::int64_t>& lengths : kLengths)
    for (const Scheme scheme : kSchemes)
      for (const Layout layout : {Layout::contiguous, Layout::zigzag})
        for (const Window window : {Window{-1, 0}, Window{}, Window{3, 2}})
          for (const int ranks : {4, 1, 2, 3}) {
            all.push_back(packed_case(scheme, layout, ranks, lengths, window));
            if (lengths != kLengths.front()) break;
          }
  return all;
}

tests::WholeResult result_of(const AttentionCase& of) {
  tests::World world(of.ranks, kTimeout);
  return tests::attention_over_shards(engine(), world, of);
}
tests::WholeGradients gradients_of(const AttentionCase& of) {
  tests::World world(of.ranks, kTimeout);
  return tests::gradients_over_shards(engine(), [&](const auto& work) { return tests::on_ranks(world, work); }, of, {});
}

void expect_right(const AttentionCase& of) {
  CAPTURE(of.text());
  CHECK(tests::is_right(result_of(of), of, engine()));
}

// Pairs of a causal mask that a rank's queries have.
double work_of(const Sharding& sharding, int rank) {
  double pairs = 0;
  const std::vector<std::int64_t>& offsets = sharding.cu_seqlens();
  for (const Span& span : sharding.spans(rank))
    for (std::int64_t at = span.first; at < span.first + span.count; ++at)
      pairs += static_cast<double>(at - *(std::upper_bound(offsets.begin(), offsets.end(), at) - 1) + 1);
  return pairs;
}

// How many times its share the rank with most work has.
double most_work(const Sharding& sharding) {
  double all = 0, most = 0;
  for (int rank = 0; rank < sharding.ranks(); ++rank) {
    const double own = work_of(sharding, rank);
    all += own, most = std::max(most, own);
  }
  return most * sharding.ranks() / all;
}

// From shortest to longest, each order of magnitude as frequent as another.
std::vector<std::int64_t> random_lengths(int count, double shortest, double longest, std::uint32_t seed) {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    lengths.push_back(static_cast<std::int64_t>(shortest * std::pow(longest / shortest, (seed >> 8) / 16777216.0)));
  }
  return lengths;
}

}  // namespace

TEST_CASE("each token of packed sequences has one rank, and ranks have as many as others") {
  std::vector<std::vector<std::int64_t>> all = kLengths;
  for (std::uint32_t seed = 0; seed < 20; ++seed) all.push_back(random_lengths(30, 1, 400, seed));
  for (const std::vector<std::int64_t>& lengths : all)
    for (const Layout layout : {Layout::contiguous, Layout::zigzag})
      for (const int ranks : {1, 2, 3, 8, 32}) {
        const Sharding sharding = Sharding::packed(layout, offsets_of(lengths), ranks);
        std::vector<int> owners(static_cast<std::size_t>(sharding.seqlen()), 0);
        std::int64_t least = sharding.seqlen(), most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const Span& span : sharding.spans(rank)) {
            REQUIRE((span.count > 0 && span.step == 1));
            for (std::int64_t i = 0; i < span.count; ++i) ++owners.at(static_cast<std::size_t>(span.first + i));
          }
          least = std::min(least, sharding.length(rank)), most = std::max(most, sharding.length(rank));
        }
        REQUIRE(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
        REQUIRE(most - least <= (layout == Layout::contiguous ? 1 : ranks));
      }
}

TEST_CASE("zigzag gives ranks the same work under a causal mask, whatever the lengths") {
  CHECK(Sharding::packed(Layout::zigzag, {0, 64}, 4).spans(1) == Sharding(Layout::zigzag, 64, 4).spans(1));
  CHECK(Sharding::packed(Layout::contiguous, {0, 20, 64}, 4).spans(1) == Sharding(Layout::contiguous, 64, 4).spans(1));
  double worst = 0;
  for (const int ranks : {2, 4, 8})
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      const std::vector<std::int64_t> offsets = offsets_of(random_lengths(20 * ranks, 16, 8192, seed));
      const double zigzag = most_work(Sharding::packed(Layout::zigzag, offsets, ranks)),
                   contiguous = most_work(Sharding::packed(Layout::contiguous, offsets, ranks));
      CHECK(zigzag < contiguous);
      worst = std::max(worst, zigzag);
    }
  CHECK(worst < 1.15);
}

TEST_CASE("a sequence that is more work than a rank's share is shared out, and others stay whole") {
  const Sharding sharding = Sharding::packed(Layout::zigzag, offsets_of({4, 16, 4, 8}), 2);
  CHECK(sharding.spans(0) == std::vector<Span>{{4, 4}, {16, 4}, {24, 8}});
  CHECK(sharding.spans(1) == std::vector<Span>{{8, 8}, {0, 4}, {20, 4}});
}

TEST_CASE("a plan has the calls of all spans that see each other, and of no others") {
  std::vector<std::vector<std::int64_t>> all = kLengths;
  all.emplace_back(7, 50);  // each is cut into parts for all of 8 ranks
  for (std::uint32_t seed = 0; seed < 20; ++seed) all.push_back(random_lengths(30, 1, 400, seed));
  for (const std::vector<std::int64_t>& lengths : all)
    for (const Layout layout : {Layout::contiguous, Layout::zigzag})
      for (const Scheme scheme : {Scheme::all_gather, Scheme::ring}) {
        const Plan plan = plan_of(scheme, packed_case(scheme, layout, 8, lengths).distributed_options(), 3);
        const std::vector<Span> queries = plan.hosts.queries_of(3);
        for (const Step& step : plan.schedule) {
          std::vector<Sight> single;
          for (const Piece& by : pieces(queries))
            for (const Piece& of : pieces(step.own ? plan.hosts.keys_of(3) : step.block))
              if (std::optional<Sight> view = sight(by.span, of.span, plan.hosts.mask)) {
                view->queries.first += by.row;
                view->keys.first += of.row;
                single.push_back(*view);
              }
          const auto rows_of_calls = [](const std::vector<Sight>& calls) {
            std::vector<std::vector<std::int64_t>> rows;
            for (const Sight& call : calls)
              rows.push_back({call.queries.first, call.queries.count, call.keys.first, call.keys.count,
                              call.window.left, call.window.right});
            return rows;
          };
          const auto found = rows_of_calls(step.calls), wanted = rows_of_calls(joined_calls(single));
          REQUIRE(found == wanted);
        }
      }
}

TEST_CASE("attention over packed sequences is that of each by itself, by every scheme, layout and window") {
  for (const AttentionCase& of : tests::sample(cases())) expect_right(of);
}

TEST_CASE("gradients over packed sequences are those of each by itself, by every scheme, layout and window") {
  for (const AttentionCase& of : tests::sample(cases())) {
    if (of.ranks < 4) continue;  // other numbers of ranks are attention's
    CAPTURE(of.text());
    CHECK(tests::are_right(gradients_of(of), of, engine()));
  }
}

TEST_CASE("options beside packed sequences: sinks, caps, functions told of positions, chunks and slopes") {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag})
    for (const Scheme scheme : kSchemes) {
      AttentionCase of = packed_case(scheme, layout, 4, kLengths[0]);
      const HostTensor numbers = HostTensor::random_normal(DType::f32, {of.num_heads_q}, 5);
      of.options.sinks = numbers.view();
      of.options.softcap = 3.0f;
      expect_right(of);
      of.options = {};
      of.options.causal = true;
      if (scheme == Scheme::all_to_all) {
        of.options.chunk = 6;
        of.options.alibi_slopes = numbers.view();
      } else if (scheme != Scheme::two_level) {
        of.options.mask = flashjit::Mask("query / 4 > key / 4 || query == key");
        of.options.score = Score("score - 0.1f * abs(query - key)");
      }
      expect_right(of);
      CAPTURE(of.text());
      CHECK(tests::are_right(gradients_of(of), of, engine()));
    }
}

TEST_CASE("sequences that stay whole are not sent") {
  for (const Scheme scheme : {Scheme::ring, Scheme::all_gather}) {
    const AttentionCase of = packed_case(scheme, Layout::zigzag, 4, {5, 5, 5, 5, 5, 5, 5, 5});
    tests::World world(of.ranks, kTimeout);
    CHECK(tests::is_right(tests::attention_over_shards(engine(), world, of), of, engine()));
    for (int rank = 0; rank < of.ranks; ++rank) CHECK(world.bytes_to(rank) == 0);
  }
}

TEST_CASE("packed tensors are sharded and gathered on the host and on devices") {
  const Sharding sharding = Sharding::packed(Layout::zigzag, offsets_of(kLengths[0]), 3);
  const HostTensor whole = HostTensor::random_normal(DType::f32, {1, sharding.seqlen(), 2, 8}, 1);
  std::vector<HostTensor> shards;
  for (int rank = 0; rank < 3; ++rank) shards.push_back(shard(whole, sharding, rank));
  CHECK(gather(shards, sharding).to_doubles() == whole.to_doubles());
  tests::World world(3, kTimeout);
  tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
    const DeviceTensor own = shard(engine(), group, whole.view(), sharding);
    if (HostTensor::from_device(own).to_doubles() != shards[static_cast<std::size_t>(group.rank())].to_doubles())
      throw std::runtime_error("another shard");
    if (HostTensor::from_device(gather(engine(), group, own, sharding)).to_doubles() != whole.to_doubles())
      throw std::runtime_error("another whole");
  }));
}

TEST_CASE("what cannot be done with packed sequences is refused by name") {
  std::string message;
  const auto refused = [&](const std::function<void()>& work, ErrorCode code = ErrorCode::invalid_argument) {
    CHECK(tests::code_of(work, &message) == code);
    return message;
  };
  CHECK(refused([] { Sharding::packed(Layout::zigzag, {}, 2); }) == "cu_seqlens: must begin with 0, was empty");
  CHECK(refused([] { Sharding::packed(Layout::zigzag, {1, 2}, 2); }) == "cu_seqlens: must begin with 0, began with 1");
  CHECK(refused([] {
          Sharding::packed(Layout::zigzag, {0, 5, 3}, 2);
        }) == "cu_seqlens: must not fall, fell from 5 to 3 behind sequence 1");
  CHECK(refused([] {
          Sharding::packed(Layout::striped, {0, 5}, 2);
        }) == "layout: must be contiguous or zigzag for packed sequences, was striped");
  CHECK(refused([] { Sharding::packed(Layout::zigzag, {0, 5}, 0); }) == "ranks: must be 1 or more, was 0");
  const Sizes sizes{1, 8, 4, 16, 16, DType::bf16};
  const auto refusal = [&](const std::function<void(Options&)>& change, ErrorCode code, const Sizes& of) {
    Options options = packed_case(Scheme::automatic, Layout::zigzag, 4, kLengths[0]).distributed_options();
    change(options);
    return refused([&] { check(of, options), chosen_scheme(of, options); }, code);
  };
  const HostTensor anything(DType::i32, {2, 8});
  CHECK(refusal([](Options& o) { o.keys = Sharding(Layout::zigzag, 84, 4); }, ErrorCode::invalid_argument, sizes) ==
        "keys: must be the sharding of q where sequences are packed, was another");
  CHECK(refusal([](Options&) {}, ErrorCode::invalid_argument, {2, 8, 4, 16, 16, DType::bf16}) ==
        "q: batch must be 1 where sequences are packed, was 2");
  CHECK(refusal([&](Options& o) { o.attention.window = {}, o.attention.prefix = anything.view(); },
                ErrorCode::unsupported,
                sizes) == "prefix: must not be given beside packed sequences over several GPUs, was");
  CHECK(refusal([&](Options& o) { o.attention.documents = anything.view(); }, ErrorCode::unsupported, sizes) ==
        "documents: must not be given beside packed sequences over several GPUs, was");
  CHECK(refusal([&](Options& o) { o.attention.alibi_slopes = anything.view(); }, ErrorCode::unsupported, sizes) ==
        "alibi_slopes: must be [8] beside packed sequences over several GPUs, was [2, 8]");
  CHECK(refusal([&](Options& o) { o.attention.mask = flashjit::Mask("batch + key > 3"); }, ErrorCode::unsupported,
                sizes) == "score and mask: must not ask for batch, as calls have parts of packed sequences, did");
}
