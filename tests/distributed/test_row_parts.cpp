// SPDX-License-Identifier: Apache-2.0
// Which rows several calls make, what a rank of a ring of gradients computes first and last, and that plans are kept.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "distributed/planned_call.h"
#include "distributed/row_parts.h"
#include "tests/distributed/attention_case.h"
#include "tests/support/emulating_engine.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;

Options causal_options(Layout layout, std::int64_t seqlen, int ranks) {
  Options options{Sharding(layout, seqlen, ranks)};
  options.attention.causal = true;
  return options;
}

double pairs_of(const Schedule& schedule) {
  double pairs = 0;
  for (const Step& step : schedule)
    for (const Sight& call : step.calls) pairs += call.pairs;
  return pairs;
}

}  // namespace

TEST_CASE("rows are told apart by the ranges that they are in, and rows of none are among them") {
  const std::vector<CoveredRows> rows = covered_rows(20, {{2, 8}, {6, 4}, {10, 2}});
  const std::vector<RowRange> ranges{{0, 2}, {2, 4}, {6, 4}, {10, 2}, {12, 8}};
  const std::vector<std::vector<std::size_t>> by{{}, {0}, {0, 1}, {2}, {}};
  REQUIRE(rows.size() == ranges.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].rows == ranges[i]);
    CHECK(rows[i].by == by[i]);
  }
  CHECK(covered_rows(3, {}).size() == 1);
  CHECK(covered_rows(0, {}).empty());
}

TEST_CASE("gradients by a ring end with calls on the rank's own block, under which the last ones come back") {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      const Options options = causal_options(layout, 96, 4);
      const Schedule attention = plan_of(Scheme::ring, options, rank).schedule,
                     gradients = plan_of_gradients(Scheme::ring, options, rank).schedule;
      REQUIRE(gradients.size() == attention.size() + 1);
      CHECK(pairs_of(gradients) == pairs_of(attention));
      CHECK((gradients.front().own && gradients.back().own));
      CHECK_FALSE(gradients.front().calls.empty());
      CHECK_FALSE(gradients.back().calls.empty());
      for (std::size_t i = 1; i + 1 < gradients.size(); ++i) CHECK_FALSE(gradients[i].own);
    }
  // Where nothing comes back there is nothing to hide.
  Options windowed{Sharding(Layout::contiguous, 96, 4)};
  windowed.attention.window = {0, 0};
  CHECK(plan_of_gradients(Scheme::ring, windowed, 1).schedule.size() == 4);
  CHECK(plan_of_gradients(Scheme::ring, causal_options(Layout::zigzag, 96, 1), 0).schedule.size() == 1);
}

TEST_CASE("calls for gradients in which all is seen have no more queries than stay near the multiprocessors") {
  const auto longest = [](const Options& options, int rank) {
    std::int64_t found = 0;
    for (const Step& step : plan_of_gradients(Scheme::ring, options, rank).schedule)
      for (const Sight& call : step.calls)
        if (call.window == Window{}) found = std::max(found, call.queries.count);
    return found;
  };
  Options full{Sharding(Layout::contiguous, 200001, 2)};
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(longest(full, rank) == (rank == 0 ? 25001 : 25000));  // of 100001 and of 100000, in four parts
    CHECK(pairs_of(plan_of_gradients(Scheme::ring, full, rank).schedule) ==
          pairs_of(plan_of(Scheme::ring, full, rank).schedule));
    CHECK(longest(causal_options(Layout::zigzag, 1 << 19, 2), rank) == 32768);
  }
}

TEST_CASE("a group keeps the plan of a call, and another call has another one") {
  constexpr Planning kAttention{"attention", chosen_scheme, plan_of};
  constexpr int kRanks = 2;
  tests::World world(kRanks, std::chrono::seconds(60));
  const auto thrown = tests::on_ranks(world, [&](Group& group) {
    const Workspace work(tests::engine_for("sm_80"), group, nullptr);
    Sizes sizes;
    sizes.dtype = DType::bf16;
    sizes.batch = 1, sizes.num_heads_q = sizes.num_heads_kv = 4, sizes.head_dim = sizes.head_dim_v = 64;
    const auto plan = [&](const Options& options) { return planned_call(work, sizes, options, kAttention); };
    const Options first = causal_options(Layout::zigzag, 96, kRanks);
    const auto known = plan(first);
    CHECK(plan(first) == known);
    std::vector<Options> others(6, first);
    others[0].queries = Sharding(Layout::zigzag, 97, kRanks);
    others[1].keys = Sharding(Layout::zigzag, 97, kRanks);
    others[2].attention.window = {7, 0};
    others[3].machine.exchange = 1;
    others[4].scheme = Scheme::all_to_all;
    others[5].queries = Sharding::packed(Layout::zigzag, {0, 40, 96}, kRanks);
    for (const Options& other : others) CHECK(plan(other) != known);
    CHECK(plan(others[4])->plan.scheme == Scheme::all_to_all);
    sizes.batch = 2;
    CHECK(plan(first) != known);
  });
  tests::rethrow_first(thrown);
}

TEST_CASE("rows have the sum of their parts, however many these are and whichever rows they have") {
  constexpr std::int64_t kRows = 40;
  tests::World world(1, std::chrono::seconds(60));
  const auto thrown = tests::on_ranks(world, [&](Group& group) {
    const Workspace work(tests::engine_for("sm_80"), group, nullptr);
    for (const DType dtype : {DType::f16, DType::f32}) {
      HostTensor place(dtype, {1, kRows, 2, 8}), result(DType::bf16, place.shape());
      std::vector<double> wanted(kRows);
      RowParts<Summands> parts(work, place.view(),
                               [&](const RowRange& rows) { work.clear(Summands::rows(place.view(), rows)); });
      const auto add = [&](const RowRange& rows, int times) {
        for (int i = 0; i < times; ++i) {
          const std::vector<double> values(static_cast<std::size_t>(rows.count) * 16, 1);
          const HostTensor ones = HostTensor::from_doubles(dtype, {1, rows.count, 2, 8}, values.data(), values.size());
          work.sum({ones.view()}, parts.make(rows));
          for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row)
            ++wanted[static_cast<std::size_t>(row)];
        }
      };
      add({3, 2}, 40);  // few rows, and more parts than a kernel takes
      add({10, 25}, 9);
      add({4, 30}, 3);
      parts.finish(result.view());
      const std::vector<double> found = result.to_doubles();
      for (std::size_t i = 0; i < found.size(); ++i) REQUIRE(found[i] == wanted[i / 16]);
    }
  });
  tests::rethrow_first(thrown);
}
