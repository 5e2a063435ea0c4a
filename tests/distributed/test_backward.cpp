// SPDX-License-Identifier: Apache-2.0
// Gradients over shards against those over the whole, in the emulator with ranks as threads.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/distributed/attention_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr std::chrono::seconds kTimeout{60};

struct WholeGradients {
  HostTensor dq, dk, dv;
};

Engine& engine() { return tests::engine_for("sm_80"); }

HostTensor dout_of(const AttentionCase& of) {
  return HostTensor::random_normal(of.dtype, {of.batch, of.seqlen_q, of.num_heads_q, of.head_dim}, 4);
}

WholeGradients gradients_over_shards(const AttentionCase& of, const tests::World::OnTheWay& fault = nullptr,
                                     const BackwardOptions& backward = {}) {
  const tests::WholeTensors whole(of);
  const HostTensor dout = dout_of(of);
  const Options options = of.distributed_options();
  std::vector<HostTensor> dq(static_cast<std::size_t>(of.ranks)), dk = dq, dv = dq;
  tests::World world(of.ranks, kTimeout);
  world.change_messages(fault);
  tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
    const int rank = group.rank();
    const HostTensor q = shard(whole.q, options.queries, rank), k = shard(whole.k, *options.keys, rank),
                     v = shard(whole.v, *options.keys, rank), own = shard(dout, options.queries, rank);
    HostTensor lse(DType::f32, {of.batch, of.num_heads_q, options.queries.length(rank)});
    Options forward = options;
    forward.scheme = Scheme::all_gather;  // which all of these cases have
    if (of.scheme == Scheme::all_to_all) forward.scheme = of.scheme;
    forward.attention.lse = lse.view();
    const DeviceTensor out = attention(engine(), group, q.view(), k.view(), v.view(), forward);
    const Gradients found = attention_backward(engine(), group, own.view(), q.view(), k.view(), v.view(), out,
                                               lse.view(), options, backward);
    const auto i = static_cast<std::size_t>(rank);
    dq[i] = HostTensor::from_device(found.dq);
    dk[i] = HostTensor::from_device(found.dk);
    dv[i] = HostTensor::from_device(found.dv);
  }));
  return {gather(dq, options.queries), gather(dk, *options.keys), gather(dv, *options.keys)};
}

bool are_right(const WholeGradients& found, const AttentionCase& of) {
  const tests::WholeTensors whole(of);
  const HostTensor dout = dout_of(of);
  const reference::Gradients exact = engine().reference_backward(dout.view(), whole.q.view(), whole.k.view(),
                                                                 whole.v.view(), of.options),
                             low = engine().reference_backward_in_low_precision(
                                 dout.view(), whole.q.view(), whole.k.view(), whole.v.view(), of.options);
  return reference::compare(found.dq, exact.dq, low.dq).passed &&
         reference::compare(found.dk, exact.dk, low.dk).passed && reference::compare(found.dv, exact.dv, low.dv).passed;
}

void expect_right(const AttentionCase& of) {
  CAPTURE(of.text());
  CHECK(are_right(gradients_over_shards(of), of));
}

AttentionCase case_of(Scheme scheme, Layout layout, int ranks, const Window& window) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = layout;
  of.ranks = ranks;
  of.num_heads_q = scheme == Scheme::all_to_all ? 2 * ranks : 4;
  of.num_heads_kv = of.num_heads_q / 2;
  of.options.window = window;
  return of;
}

}  // namespace

TEST_CASE("gradients over shards are those over the whole, of every rank number, mask and layout that has them") {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const Window window : {Window{}, Window{-1, 0}, Window{7, 0}, Window{5, 3}})
      for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
        for (const Scheme scheme : {Scheme::all_gather, Scheme::all_to_all}) {
          const bool is_masked = window != Window{};
          if (scheme == Scheme::all_gather && layout == Layout::striped && is_masked && ranks > 1) continue;
          AttentionCase of = case_of(scheme, layout, ranks, window);
          expect_right(of);
          of.seqlen_q = 23, of.seqlen_kv = 5;  // of 8 ranks some have no keys, and rows see none
          expect_right(of);
        }
}

TEST_CASE("gradients beside batches, sinks, caps and functions") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {4}, 5);
  HostTensor documents(DType::i32, {37});
  for (int i = 0; i < 37; ++i) store_element(documents.data(), DType::i32, i, i / 9);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag})
    for (const Scheme scheme : {Scheme::all_gather, Scheme::all_to_all}) {
      AttentionCase of = case_of(scheme, layout, 2, {-1, 0});
      of.batch = 2;
      of.options.sinks = sinks.view();
      of.options.softcap = 3.0f;
      expect_right(of);
      if (scheme == Scheme::all_to_all) continue;
      of.options = {};
      of.options.mask = Mask("document(query) == document(key)", {{"document", documents.view()}});
      of.options.score = Score("score - 0.1f * abs(query - key)");
      expect_right(of);
    }
}

TEST_CASE("deterministic gradients are the same in every run") {
  BackwardOptions backward;
  backward.deterministic = true;
  for (const Scheme scheme : {Scheme::all_gather, Scheme::all_to_all}) {
    const AttentionCase of = case_of(scheme, Layout::zigzag, 4, {-1, 0});
    const WholeGradients a = gradients_over_shards(of, nullptr, backward),
                         b = gradients_over_shards(of, nullptr, backward);
    CHECK(a.dq.to_doubles() == b.dq.to_doubles());
    CHECK(a.dk.to_doubles() == b.dk.to_doubles());
    CHECK(a.dv.to_doubles() == b.dv.to_doubles());
  }
}

TEST_CASE("a message that is lost on the way is found in gradients") {
  for (const Scheme scheme : {Scheme::all_gather, Scheme::all_to_all}) {
    const AttentionCase of = case_of(scheme, Layout::contiguous, 2, {});
    int last = 0;
    gradients_over_shards(of, [&](int from, int, tests::World::Bytes&) { last += from == 0 ? 1 : 0; });
    for (int lost = 0; lost < last; ++lost) {  // of any rows, results, LSEs or gradients
      CAPTURE(lost);
      int count = 0;
      CHECK_FALSE(are_right(gradients_over_shards(of,
                                                  [&](int from, int, tests::World::Bytes& bytes) {
                                                    if (from == 0 && count++ == lost)
                                                      std::fill(bytes.begin(), bytes.end(), 0x3f);
                                                  }),
                            of));
    }
  }
}

TEST_CASE("gradients that no scheme has are refused by name") {
  const auto refusal = [](const AttentionCase& of, const BackwardOptions& backward = {}) {
    std::string message;
    CHECK(tests::code_of([&] { gradients_over_shards(of, nullptr, backward); }, &message) == ErrorCode::unsupported);
    return message;
  };
  CHECK(refusal(case_of(Scheme::ring, Layout::zigzag, 2, {})) ==
        "scheme: must be all_gather or all_to_all for gradients, was ring");
  CHECK(refusal(case_of(Scheme::all_gather, Layout::striped, 2, {-1, 0})) ==
        "queries: layout must be contiguous or zigzag for gradients by scheme all_gather, was striped");
  AttentionCase of = case_of(Scheme::all_to_all, Layout::zigzag, 4, {});
  of.num_heads_kv = 2;
  CHECK(refusal(of) == "num_heads_kv: must be a multiple of the 4 ranks for gradients by scheme all_to_all, was 2");
  BackwardOptions backward;
  backward.variant = MmaBackwardVariant{};
  CHECK(refusal(case_of(Scheme::all_gather, Layout::zigzag, 2, {}), backward) ==
        "variant: must not be given over several GPUs, was");
  expect_right(case_of(Scheme::automatic, Layout::zigzag, 2, {-1, 0}));
}
