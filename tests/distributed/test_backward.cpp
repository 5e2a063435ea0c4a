// SPDX-License-Identifier: Apache-2.0
// Gradients over shards against those over the whole, in the emulator with ranks as threads.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
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

Engine& engine() { return tests::engine_for("sm_80"); }

using tests::dout_of;
using tests::WholeGradients;

WholeGradients gradients_over_shards(const AttentionCase& of, const tests::World::OnTheWay& fault = nullptr,
                                     const BackwardOptions& backward = {}) {
  tests::World world(of.ranks, kTimeout);
  world.change_messages(fault);
  return tests::gradients_over_shards(
      engine(), [&](const auto& work) { return tests::on_ranks(world, work); }, of, backward);
}

bool are_right(const WholeGradients& found, const AttentionCase& of) { return tests::are_right(found, of, engine()); }

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
  std::vector<AttentionCase> cases;
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const Window window : {Window{}, Window{-1, 0}, Window{7, 0}, Window{5, 3}})
      for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
        for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all}) {
          const bool is_masked = window != Window{};
          if (scheme == Scheme::all_gather && layout == Layout::striped && is_masked && ranks > 1) continue;
          AttentionCase of = case_of(scheme, layout, ranks, window);
          cases.push_back(of);
          of.seqlen_q = 23, of.seqlen_kv = 5;  // of 8 ranks some have no keys, and rows see none
          cases.push_back(of);
        }
  for (const AttentionCase& of : tests::sample(cases)) expect_right(of);
}

TEST_CASE("gradients by heads within hosts and a ring across them") {
  std::vector<AttentionCase> cases;
  for (const auto& [ranks, ranks_of_host] : {std::pair{4, 2}, {6, 3}, {2, 2}, {3, 1}})
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
      for (const Window window : {Window{}, Window{-1, 0}, Window{7, 0}}) {
        AttentionCase of = case_of(Scheme::two_level, layout, ranks, window);
        of.ranks_of_host = ranks_of_host;
        of.num_heads_q = 2 * ranks_of_host;
        of.num_heads_kv = ranks_of_host;
        cases.push_back(of);
      }
  for (const AttentionCase& of : tests::sample(cases)) expect_right(of);
}

TEST_CASE("gradients beside batches, sinks, caps and functions") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {4}, 5);
  HostTensor documents(DType::i32, {37});
  for (int i = 0; i < 37; ++i) store_element(documents.data(), DType::i32, i, i / 9);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag})
    for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all}) {
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
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all}) {
    const AttentionCase of = case_of(scheme, Layout::zigzag, 4, {-1, 0});
    const WholeGradients a = gradients_over_shards(of, nullptr, backward),
                         b = gradients_over_shards(of, nullptr, backward);
    CHECK(tests::is_same(a, b));
  }
}

namespace {

constexpr double kRoom = 1024;  // which no gradient is

// A tensor of which each row has room behind it, filled with that.
struct Roomy {
  explicit Roomy(const HostTensor& like) : memory(like.dtype(), with_room(like.shape())), shape(like.shape()) {
    for (std::size_t i = 0; i < memory.element_count(); ++i)
      store_element(memory.data(), memory.dtype(), static_cast<std::int64_t>(i), kRoom);
  }
  static Dims with_room(Dims shape) {
    shape[3] += 8;
    return shape;
  }
  Tensor view() { return Tensor(memory.data(), memory.dtype(), shape, packed_strides(memory.shape())); }
  // Its rows, and then what stands in the room behind each.
  std::vector<double> rows() const { return part(0, shape[3]); }
  std::vector<double> room() const { return part(shape[3], memory.shape()[3]); }
  std::vector<double> part(std::int64_t first, std::int64_t end) const {
    const std::vector<double> all = memory.to_doubles();
    std::vector<double> found;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t column = static_cast<std::int64_t>(i) % memory.shape()[3];
      if (column >= first && column < end) found.push_back(all[i]);
    }
    return found;
  }

  HostTensor memory;
  Dims shape;
};

}  // namespace

TEST_CASE("gradients go into the caller's memory, of any strides, and nowhere else") {
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all}) {
    const AttentionCase of = case_of(scheme, Layout::zigzag, 2, {-1, 0});
    const tests::WholeTensors whole(of);
    const Options options = of.distributed_options();
    BackwardOptions backward;
    backward.deterministic = true;
    tests::World world(of.ranks, kTimeout);
    tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
      const int rank = group.rank();
      const HostTensor q = shard(whole.q, options.queries, rank), k = shard(whole.k, *options.keys, rank),
                       v = shard(whole.v, *options.keys, rank), dout = shard(dout_of(of), options.queries, rank);
      HostTensor lse(DType::f32, {of.batch, of.num_heads_q, options.queries.length(rank)});
      Options forward = options;
      forward.attention.lse = lse.view();
      const DeviceTensor out = attention(engine(), group, q.view(), k.view(), v.view(), forward);
      const Gradients own = attention_backward(engine(), group, dout.view(), q.view(), k.view(), v.view(), out,
                                               lse.view(), options, backward);
      Roomy dq(q), dk(k), dv(v);
      const GradientTensors into{dq.view(), dk.view(), dv.view()};
      attention_backward(engine(), group, dout.view(), q.view(), k.view(), v.view(), out, lse.view(), into, options,
                         backward);
      for (const auto& [given, made] : {std::pair{&dq, &own.dq}, {&dk, &own.dk}, {&dv, &own.dv}}) {
        if (given->rows() != HostTensor::from_device(*made).to_doubles()) throw std::runtime_error("other gradients");
        const std::vector<double> room = given->room();
        if (std::set<double>(room.begin(), room.end()) != std::set<double>{kRoom})
          throw std::runtime_error("something beside a gradient was written");
      }
    }));
  }
}

TEST_CASE("by a ring each row that others see comes back once, in f32") {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (const Window window : {Window{}, Window{-1, 0}, Window{5, 0}}) {
      const AttentionCase of = case_of(Scheme::ring, layout, 4, window);
      CAPTURE(of.text());
      std::size_t bytes = 0, of_attention = 0;
      std::mutex mutex;
      const auto count = [&](std::size_t& into) {
        return [&](int, int, tests::World::Bytes& message) {
          const std::lock_guard lock(mutex);
          into += message.size();
        };
      };
      gradients_over_shards(of, count(bytes));  // and attention before, whose keys are all gathered: the same rows
      tests::World world(of.ranks, kTimeout);
      world.change_messages(count(of_attention));
      tests::attention_over_shards(engine(), world, of);
      CHECK(bytes == of_attention + 3 * of_attention);
    }
}

TEST_CASE("a message that is lost on the way is found in gradients") {
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring, Scheme::all_to_all}) {
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
  CHECK(refusal(case_of(Scheme::all_gather, Layout::striped, 2, {-1, 0})) ==
        "queries: layout must be contiguous or zigzag for gradients by scheme all_gather, was striped");
  AttentionCase of = case_of(Scheme::all_to_all, Layout::zigzag, 4, {});
  of.num_heads_kv = 2;
  CHECK(
      refusal(of) ==
      "num_heads_kv: must be a multiple of the 4 ranks that share out heads for gradients by scheme all_to_all, was 2");
  BackwardOptions backward;
  backward.variant = MmaBackwardVariant{};
  CHECK(refusal(case_of(Scheme::all_gather, Layout::zigzag, 2, {}), backward) ==
        "variant: must not be given over several GPUs, was");
  expect_right(case_of(Scheme::automatic, Layout::zigzag, 2, {-1, 0}));
  AttentionCase automatic = of;  // for which attention has a scheme
  automatic.scheme = Scheme::all_to_all;
  automatic.options.chunk = 8;
  Options options = automatic.distributed_options();
  options.scheme = Scheme::automatic;
  tests::World world(automatic.ranks, kTimeout);
  Group group(std::make_unique<tests::InProcess>(world, 0));
  const tests::WholeTensors whole(automatic);
  const HostTensor q = shard(whole.q, options.queries, 0), k = shard(whole.k, *options.keys, 0);
  const HostTensor lse(DType::f32, {automatic.batch, automatic.num_heads_q, options.queries.length(0)});
  std::string message;
  CHECK(tests::code_of(
            [&] {
              attention_backward(engine(), group, q.view(), q.view(), k.view(), k.view(), q.view(), lse.view(),
                                 options);
            },
            &message) == ErrorCode::unsupported);
  CHECK(message == "num_heads_kv: must be a multiple of the 4 ranks for gradients beside chunk, was 2");
}

TEST_CASE("memory for gradients that is not theirs is refused by name, and nothing is sent") {
  const AttentionCase of = case_of(Scheme::all_gather, Layout::zigzag, 2, {});
  Options options = of.distributed_options();
  tests::World world(of.ranks, kTimeout);
  Group group(std::make_unique<tests::InProcess>(world, 0));
  const tests::WholeTensors whole(of);
  const HostTensor q = shard(whole.q, options.queries, 0), k = shard(whole.k, *options.keys, 0);
  const HostTensor lse(DType::f32, {of.batch, of.num_heads_q, options.queries.length(0)});
  const auto refusal = [&](const GradientTensors& into, ErrorCode code = ErrorCode::invalid_argument) {
    std::string message;
    CHECK(tests::code_of(
              [&] {
                attention_backward(engine(), group, q.view(), q.view(), k.view(), k.view(), q.view(), lse.view(), into,
                                   options);
              },
              &message) == code);
    return message;
  };
  HostTensor dq(q.dtype(), q.shape()), dk(k.dtype(), k.shape()), f32(DType::f32, k.shape());
  CHECK(refusal({dq.view(), std::nullopt, dk.view()}) == "dk: must be given, was not");
  CHECK(refusal({dq.view(), dk.view(), dq.view()}) == "dv: shape must be [1, 19, 2, 16], was [1, 19, 4, 16]");
  CHECK(refusal({dq.view(), f32.view(), dk.view()}) == "dk: dtype must be bf16, was f32");
  CHECK(refusal({dq.view(), dk.view(), dk.view(), lse.view()}) == "dbias: must not be given without bias, was");
  CHECK(refusal({dq.view(), dk.view(), dk.view(), std::nullopt, std::nullopt, lse.view()}) ==
        "dsinks: must not be given without sinks, was");
  CHECK(refusal({dq.view(), dk.view(), dk.view(), std::nullopt, lse.view()}) ==
        "dslopes: must not be given without alibi_slopes, was");
  const HostTensor sinks(DType::f32, {4}), fewer(DType::f32, {3});
  options.attention.sinks = sinks.view();
  CHECK(refusal({dq.view(), dk.view(), dk.view(), std::nullopt, std::nullopt, fewer.view()}) ==
        "dsinks: must be f32 [4] like sinks, contiguous, was f32 [3]");
  CHECK(refusal({dq.view(), dk.view(), dk.view(), std::nullopt, std::nullopt, Tensor(nullptr, DType::f32, {4})}) ==
        "dsinks: must point to its elements, was null");
  CHECK(world.is_empty());
}
