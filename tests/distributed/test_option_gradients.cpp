// SPDX-License-Identifier: Apache-2.0
// Gradients of sinks and slopes over shards: sums over the rows of all ranks, on each of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/distributed/attention_case.h"
#include "tests/distributed/gradient_case.h"
#include "tests/support/emulating_engine.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr std::chrono::seconds kTimeout{60};

Engine& engine() { return tests::engine_for("sm_80"); }

struct OptionGradients {
  HostTensor dslopes, dsinks;
};

// Those that each rank has, of the options that the case has.
std::vector<OptionGradients> made_over_shards(const AttentionCase& of, const tests::World::OnTheWay& change = nullptr) {
  const tests::WholeTensors whole(of);
  const HostTensor douts = tests::dout_of(of);
  const Options options = of.distributed_options();
  std::vector<OptionGradients> made(static_cast<std::size_t>(of.ranks));
  tests::World world(of.ranks, kTimeout);
  world.change_messages(change);
  tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
    const int rank = group.rank();
    const HostTensor q = shard(whole.q, options.queries, rank), k = shard(whole.k, of.keys(), rank),
                     v = shard(whole.v, of.keys(), rank), dout = shard(douts, options.queries, rank);
    HostTensor lse(DType::f32, {of.batch, of.num_heads_q, options.queries.length(rank)});
    Options forward = options;
    forward.attention.lse = lse.view();
    const DeviceTensor out = attention(engine(), group, q.view(), k.view(), v.view(), forward);
    HostTensor dq(q.dtype(), q.shape()), dk(k.dtype(), k.shape()), dv(v.dtype(), v.shape());
    GradientTensors into{dq.view(), dk.view(), dv.view()};
    OptionGradients& own = made[static_cast<std::size_t>(rank)];
    const auto poisoned = [](const Tensor& like) {
      const std::vector<double> values(8 * 64, 1024.0);
      std::int64_t count = 1;
      for (const std::int64_t size : like.shape) count *= size;
      return HostTensor::from_doubles(DType::f32, like.shape, values.data(), static_cast<std::size_t>(count));
    };
    if (of.options.sinks) into.dsinks = (own.dsinks = poisoned(*of.options.sinks)).view();
    if (of.options.alibi_slopes) into.dslopes = (own.dslopes = poisoned(*of.options.alibi_slopes)).view();
    attention_backward(engine(), group, dout.view(), q.view(), k.view(), v.view(), out, lse.view(), into, options);
  }));
  return made;
}

using Values = std::vector<double> reference::Gradients::*;

// Of few numbers, each a sum over all rows, what low precision does to several calls like this one at most.
bool is_right(const HostTensor& found, const AttentionCase& of, Values values) {
  const tests::WholeTensors whole(of);
  const tests::WholeOptions with(of);
  const auto reference_of = [&](const HostTensor& dout, bool low) {
    return low ? engine().reference_backward_in_low_precision(dout.view(), whole.q.view(), whole.k.view(),
                                                              whole.v.view(), with.options)
               : engine().reference_backward(dout.view(), whole.q.view(), whole.k.view(), whole.v.view(), with.options);
  };
  const std::vector<double> exact = reference_of(tests::dout_of(of), false).*values;
  double yardstick = 0;
  for (std::uint64_t seed = 60; seed < 66; ++seed) {
    const HostTensor dout = HostTensor::random_normal(of.dtype, whole.q.shape(), seed);
    const std::vector<double> one = reference_of(dout, false).*values, other = reference_of(dout, true).*values;
    for (std::size_t i = 0; i < one.size(); ++i) yardstick = std::max(yardstick, std::abs(one[i] - other[i]));
  }
  std::vector<double> low = exact;
  for (double& value : low) value += yardstick;
  return reference::compare(found, exact, low).passed;
}

void expect_right(const AttentionCase& of) {
  CAPTURE(of.text());
  const std::vector<OptionGradients> made = made_over_shards(of);
  for (const OptionGradients& own : made) {
    CHECK(own.dsinks.to_doubles() == made[0].dsinks.to_doubles());
    CHECK(own.dslopes.to_doubles() == made[0].dslopes.to_doubles());
  }
  if (of.options.sinks) CHECK(is_right(made[0].dsinks, of, &reference::Gradients::dsinks));
  if (of.options.alibi_slopes) CHECK(is_right(made[0].dslopes, of, &reference::Gradients::dslopes));
}

AttentionCase case_of(Scheme scheme, int ranks) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = Layout::zigzag;
  of.ranks = ranks;
  of.ranks_of_host = scheme == Scheme::two_level ? 2 : 0;
  of.batch = 2;
  of.num_heads_q = 12;  // which fill no row of 8
  of.num_heads_kv = 4;
  of.options.causal = true;
  return of;
}

}  // namespace

TEST_CASE("gradients of sinks are sums over all ranks' rows, on every rank, by every scheme") {
  const HostTensor of_heads = HostTensor::random_normal(DType::f32, {12}, 5),
                   of_entries = HostTensor::random_normal(DType::f32, {2, 12}, 6);
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level})
    for (const HostTensor* sinks : {&of_heads, &of_entries}) {
      AttentionCase of = case_of(scheme, 4);
      of.options.sinks = sinks->view();
      expect_right(of);
      of.seqlen_q = 50, of.seqlen_kv = 19;  // of which the first see nothing but the sink
      expect_right(of);
    }
  AttentionCase alone = case_of(Scheme::ring, 1);
  alone.options.sinks = of_heads.view();
  expect_right(alone);
}

TEST_CASE("gradients of slopes are sums over all ranks' rows, on every rank, where heads are shared out") {
  const HostTensor of_heads = HostTensor::random_normal(DType::f32, {12}, 5),
                   of_entries = HostTensor::random_normal(DType::f32, {2, 12}, 6);
  for (const int ranks : {1, 4})
    for (const HostTensor* numbers : {&of_heads, &of_entries}) {
      AttentionCase of = case_of(Scheme::all_to_all, ranks);
      of.options.alibi_slopes = of.options.sinks = numbers->view();
      expect_right(of);
    }
}

TEST_CASE("gradients of sinks over packed sequences") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {12}, 5);
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level}) {
    AttentionCase of = case_of(scheme, 4);
    of.batch = 1;
    of.cu_seqlens = {0, 20, 23, 23, 37};
    of.options.sinks = sinks.view();
    expect_right(of);
  }
}

TEST_CASE("more ranks than a sum has parts") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {12}, 5);
  AttentionCase of = case_of(Scheme::all_gather, 18);
  of.options.sinks = sinks.view();
  expect_right(of);
}

TEST_CASE("what one rank adds to gradients of sinks is missed where it is lost") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {12}, 5);
  AttentionCase of = case_of(Scheme::ring, 4);
  of.options.sinks = sinks.view();
  const auto lost = [](int from, int to, tests::World::Bytes& bytes) {
    if (from == 2 && to == 0 && bytes.size() == 16 * sizeof(float)) std::fill(bytes.begin(), bytes.end(), 0);
  };
  CHECK_FALSE(is_right(made_over_shards(of, lost)[1].dsinks, of, &reference::Gradients::dsinks));
}
