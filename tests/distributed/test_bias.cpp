// SPDX-License-Identifier: Apache-2.0
// A bias over shards, of which each rank has its queries' rows, and its gradient.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
constexpr int kQueriesDim = 2;

Engine& engine() { return tests::engine_for("sm_80"); }

AttentionCase case_of(Scheme scheme, Layout layout, const Window& window, const Dims& entries_and_heads = {2, 4}) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = layout;
  of.ranks = 3;
  of.batch = 2;
  of.seqlen_q = of.seqlen_kv = 50;
  of.options.window = window;
  of.bias = HostTensor::random_normal(DType::f32, {entries_and_heads[0], entries_and_heads[1], 50, 50}, 6);
  return of;
}

tests::WholeResult result_of(const AttentionCase& of) {
  tests::World world(of.ranks, kTimeout);
  return tests::attention_over_shards(engine(), world, of);
}

void expect_right(const AttentionCase& of) {
  CAPTURE(of.text());
  CHECK(tests::is_right(result_of(of), of, engine()));
}

struct BiasGradients {
  HostTensor dq, dk, dv, dbias;
};

BiasGradients gradients_of(const AttentionCase& of, DType dtype) {
  const tests::WholeTensors whole(of);
  const HostTensor douts = tests::dout_of(of);
  std::vector<HostTensor> dqs(static_cast<std::size_t>(of.ranks)), dks = dqs, dvs = dqs, dbiases = dqs;
  tests::World world(of.ranks, kTimeout);
  tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
    const int rank = group.rank();
    Options options = of.distributed_options();
    const HostTensor q = shard(whole.q, options.queries, rank), k = shard(whole.k, of.keys(), rank),
                     v = shard(whole.v, of.keys(), rank), dout = shard(douts, options.queries, rank),
                     bias = shard(*of.bias, options.queries, rank, kQueriesDim);
    const HostTensor lse(DType::f32, {of.batch, of.num_heads_q, options.queries.length(rank)});
    options.attention.bias = bias.view();
    Options forward = options;
    forward.attention.lse = lse.view();
    const DeviceTensor out = attention(engine(), group, q.view(), k.view(), v.view(), forward);
    HostTensor dq(q.dtype(), q.shape()), dk(k.dtype(), k.shape()), dv(v.dtype(), v.shape());
    HostTensor dbias = HostTensor::random_normal(dtype, bias.shape(), 9);  // which hidden pairs must not keep
    attention_backward(engine(), group, dout.view(), q.view(), k.view(), v.view(), out, lse.view(),
                       {dq.view(), dk.view(), dv.view(), dbias.view()}, options);
    const auto i = static_cast<std::size_t>(rank);
    dqs[i] = std::move(dq), dks[i] = std::move(dk), dvs[i] = std::move(dv), dbiases[i] = std::move(dbias);
  }));
  const Sharding queries = of.distributed_options().queries;
  return {gather(dqs, queries), gather(dks, of.keys()), gather(dvs, of.keys()), gather(dbiases, queries, kQueriesDim)};
}

void expect_right_gradients(const AttentionCase& of, DType dtype = DType::f32) {
  CAPTURE(of.text());
  const BiasGradients found = gradients_of(of, dtype);
  CHECK(tests::are_right({found.dq, found.dk, found.dv}, of, engine()));
  const tests::WholeTensors whole(of);
  const tests::WholeOptions with(of);
  const HostTensor dout = tests::dout_of(of);
  const auto exact =
                 engine().reference_backward(dout.view(), whole.q.view(), whole.k.view(), whole.v.view(), with.options),
             low = engine().reference_backward_in_low_precision(dout.view(), whole.q.view(), whole.k.view(),
                                                                whole.v.view(), with.options);
  CHECK(reference::compare(found.dbias, exact.dbias, low.dbias).passed);
}

std::vector<AttentionCase> cases(const std::vector<Scheme>& schemes) {
  std::vector<AttentionCase> all;
  for (const Scheme scheme : schemes)
    for (const Layout layout : {Layout::contiguous, Layout::zigzag})
      for (const Window window : {Window{-1, 0}, Window{}, Window{6, 2}})
        for (const Dims& entries_and_heads : {Dims{2, 4}, Dims{1, 4}, Dims{2, 1}, Dims{1, 1}})
          all.push_back(case_of(scheme, layout, window, entries_and_heads));
  return all;
}

}  // namespace

TEST_CASE("a bias is added where its rows and columns are, by all-gather and ring") {
  for (const AttentionCase& of : tests::sample(cases({Scheme::all_gather, Scheme::ring}))) expect_right(of);
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring}) {
    AttentionCase of = case_of(scheme, Layout::zigzag, {-1, 0});
    of.options.softcap = 4.0f;
    of.options.score = Score("score - 0.1f * abs(query - key)");
    expect_right(of);
    of = case_of(scheme, Layout::contiguous, {-1, 0});
    of.seqlen_q = 21;
    of.bias = HostTensor::random_normal(DType::bf16, {2, 4, 21, 50}, 6);
    expect_right(of);
    of.ranks = 1;
    expect_right(of);
  }
}

TEST_CASE("a bias gets the gradients of its rows, and hidden pairs get 0") {
  for (const AttentionCase& of : tests::sample(cases({Scheme::ring}))) expect_right_gradients(of);
  AttentionCase of = case_of(Scheme::automatic, Layout::zigzag, {-1, 0});
  of.bias = HostTensor::random_normal(DType::bf16, {1, 4, 50, 50}, 6);
  expect_right_gradients(of, DType::bf16);
  of.ranks = 1;
  expect_right_gradients(of);
}

TEST_CASE("a bias that no scheme serves, or of another shape, is refused by name") {
  const auto refusal = [](const AttentionCase& of, ErrorCode code, bool gradients = false) {
    std::string message;
    CHECK(tests::code_of([&] { gradients ? void(gradients_of(of, DType::f32)) : void(result_of(of)); }, &message) ==
          code);
    return message;
  };
  CHECK(refusal(case_of(Scheme::all_to_all, Layout::zigzag, {}), ErrorCode::unsupported) ==
        "bias: must not be given with scheme all_to_all, which shares out heads, was");
  CHECK(refusal(case_of(Scheme::ring, Layout::striped, {}), ErrorCode::unsupported) ==
        "bias: must not be given with striped shards, of whose positions it cannot be told, was");
  CHECK(refusal(case_of(Scheme::all_gather, Layout::zigzag, {}), ErrorCode::unsupported, true) ==
        "bias: must not be given for gradients by scheme all_gather, which has others' queries, was");
  AttentionCase of = case_of(Scheme::ring, Layout::contiguous, {});
  of.bias = HostTensor(DType::f32, {2, 3, 50, 50});
  CHECK(refusal(of, ErrorCode::invalid_argument) ==
        "bias: shape must be [2 or 1, 4 or 1, 17, 50], of this rank's queries and of all keys, was [2, 3, 17, 50]");
}
