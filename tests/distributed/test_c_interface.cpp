// SPDX-License-Identifier: Apache-2.0
// The C interface beside that of C++, with ranks as threads whose transport is functions of C.
#include <doctest/doctest.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashjit_distributed.h"
#include "tests/distributed/attention_case.h"
#include "tests/support/dlpack_view.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;
using tests::DlpackView;

constexpr std::chrono::seconds kTimeout{60};

// A rank of a world, as the context of a transport's functions.
struct CRank {
  CRank(tests::World& world, int rank) : transport(world, rank) {}

  tests::InProcess transport;
  std::deque<std::uint64_t> started;
  int aborts = 0, destroyed = 0;

  static CRank& of(void* context) { return *static_cast<CRank*>(context); }
};

Message to_message(const flashjit_message& given) {
  return {given.peer, Tensor(given.data, DType::boolean, {static_cast<std::int64_t>(given.bytes)})};
}

template <typename Work>
int guarded(char* error, const Work& work) {
  try {
    work();
    return 0;
  } catch (const Error& thrown) {
    const std::string text = thrown.what() + std::strlen("group: ");
    text.copy(error, FLASHJIT_TRANSPORT_ERROR_BYTES - 1);
    error[text.size()] = '\0';
    return 1;
  }
}

int start(void* context, const flashjit_message* sends, std::size_t send_count, const flashjit_message* receives,
          std::size_t receive_count, void*, char* error) {
  return guarded(error, [&] {
    Exchange exchange;
    for (std::size_t i = 0; i < send_count; ++i) exchange.sends.push_back(to_message(sends[i]));
    for (std::size_t i = 0; i < receive_count; ++i) exchange.receives.push_back(to_message(receives[i]));
    CRank::of(context).started.push_back(CRank::of(context).transport.start(exchange, nullptr));
  });
}

int finish(void* context, void*, char* error) {
  return guarded(error, [&] {
    CRank& rank = CRank::of(context);
    rank.transport.finish(rank.started.front(), nullptr);
    rank.started.pop_front();
  });
}

int wait(void* context, char* error) {
  return guarded(error, [&] { CRank::of(context).transport.wait(); });
}

flashjit_transport transport_of(CRank& rank) {
  flashjit_transport c = FLASHJIT_TRANSPORT_INIT;
  c.context = &rank;
  c.rank = rank.transport.rank();
  c.size = rank.transport.size();
  c.start = start;
  c.finish = finish;
  c.wait = wait;
  c.abort = [](void* context) {
    ++CRank::of(context).aborts;
    CRank::of(context).transport.abort();
  };
  c.destroy = [](void* context) { ++CRank::of(context).destroyed; };
  return c;
}

void require_ok(flashjit_status status) {
  if (status != FLASHJIT_OK) throw std::runtime_error(flashjit_last_error());
}

using CGroup = std::unique_ptr<flashjit_group, decltype(&flashjit_group_destroy)>;

CGroup group_of(CRank& rank) {
  const flashjit_transport transport = transport_of(rank);
  flashjit_group* made = nullptr;
  require_ok(flashjit_group_from_transport(&transport, &made));
  return CGroup(made, flashjit_group_destroy);
}

std::vector<std::exception_ptr> on_c_ranks(tests::World& world,
                                           const std::function<void(int rank, flashjit_group* group)>& work) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(world.ranks()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.ranks(); ++rank)
    threads.emplace_back([&, rank] {
      CRank of(world, rank);
      try {
        work(rank, group_of(of).get());
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

flashjit_engine* engine() {
  static flashjit_engine* const made = [] {
    flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
    options.emulate = "sm_80";
    options.cache_directory = FLASHJIT_KEPT_KERNELS;
    flashjit_engine* engine = nullptr;
    require_ok(flashjit_engine_create(&options, &engine));
    return engine;
  }();
  return made;
}

flashjit_distributed_options options_of(const AttentionCase& of) {
  flashjit_distributed_options options = FLASHJIT_DISTRIBUTED_OPTIONS_INIT;
  options.queries = {of.seqlen_q, static_cast<std::int32_t>(of.layout), of.ranks};
  options.scheme = static_cast<std::int32_t>(of.scheme);
  options.ranks_of_host = of.ranks_of_host;
  if (of.cu_seqlens.empty()) return options;
  options.cu_seqlens = of.cu_seqlens.data();
  options.sequences = of.cu_seqlens.size() - 1;
  return options;
}

std::string refusal(flashjit_status status, flashjit_status wanted = FLASHJIT_INVALID_ARGUMENT) {
  CHECK(status == wanted);
  return flashjit_last_error();
}

}  // namespace

TEST_CASE("C: the spans of a sharding are those of C++") {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (const std::int64_t seqlen : {0, 1, 7, 64})
      for (const int ranks : {1, 2, 3, 8})
        for (int rank = 0; rank < ranks; ++rank) {
          const flashjit_sharding sharding{seqlen, static_cast<std::int32_t>(layout), ranks};
          flashjit_span spans[FLASHJIT_MOST_SPANS];
          std::size_t count = 0;
          REQUIRE(flashjit_sharding_spans(&sharding, rank, spans, &count) == FLASHJIT_OK);
          const std::vector<Span> wanted = Sharding(layout, seqlen, ranks).spans(rank);
          REQUIRE(count == wanted.size());
          for (std::size_t i = 0; i < count; ++i)
            CHECK(Span{spans[i].first, spans[i].count, spans[i].step} == wanted[i]);
        }
  flashjit_span spans[FLASHJIT_MOST_SPANS];
  std::size_t count = 0;
  const flashjit_sharding unknown{8, 3, 2}, good{8, FLASHJIT_ZIGZAG, 2};
  CHECK(refusal(flashjit_sharding_spans(&unknown, 0, spans, &count)) == "layout: must be from 0 to 2, was 3");
  CHECK(refusal(flashjit_sharding_spans(&good, 2, spans, &count)) == "rank: must be from 0 to 1, was 2");
  CHECK(refusal(flashjit_sharding_spans(nullptr, 0, spans, &count)) == "sharding: must not be null");
}

TEST_CASE("C: the spans of packed sequences are those of C++, as many as there is room for") {
  const std::vector<std::int64_t> offsets{0, 4, 20, 24, 32};
  const flashjit_sharding sharding{32, FLASHJIT_ZIGZAG, 2};
  std::size_t count = 0;
  flashjit_span spans[3] = {};
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<Span> wanted = Sharding::packed(Layout::zigzag, offsets, 2).spans(rank);
    REQUIRE(wanted.size() == 3);
    require_ok(flashjit_packed_spans(&sharding, offsets.data(), 4, rank, spans, 3, &count));
    CHECK(count == 3);
    for (std::size_t i = 0; i < count; ++i) CHECK(Span{spans[i].first, spans[i].count, spans[i].step} == wanted[i]);
  }
  require_ok(flashjit_packed_spans(&sharding, offsets.data(), 4, 0, nullptr, 0, &count));
  CHECK(count == 3);
  spans[1] = {};
  require_ok(flashjit_packed_spans(&sharding, offsets.data(), 4, 0, spans, 1, &count));
  CHECK((spans[0].count > 0 && spans[1].count == 0));
  require_ok(flashjit_packed_spans(&sharding, nullptr, 0, 0, spans, 3, &count));
  CHECK(count == 2);
  const flashjit_sharding shorter{30, FLASHJIT_ZIGZAG, 2};
  CHECK(refusal(flashjit_packed_spans(&shorter, offsets.data(), 4, 0, spans, 3, &count)) ==
        "seqlen: must be 32, the last of cu_seqlens, was 30");
  CHECK(refusal(flashjit_packed_spans(&sharding, nullptr, 4, 0, spans, 3, &count)) ==
        "sequences: must be 0 without cu_seqlens, was 4");
}

TEST_CASE("C: attention, gradients and gathered tensors are those of C++, bit by bit") {
  for (const std::vector<std::int64_t>& cu_seqlens :
       {std::vector<std::int64_t>{}, std::vector<std::int64_t>{0, 3, 3, 24, 30, 37}}) {
    AttentionCase of;
    of.scheme = Scheme::all_gather;
    of.layout = Layout::zigzag;
    of.options.causal = true;
    of.cu_seqlens = cu_seqlens;
    const tests::WholeTensors whole(of);
    const HostTensor douts = HostTensor::random_normal(of.dtype, whole.q.shape(), 4);
    const Options options = of.distributed_options();
    BackwardOptions backward;
    backward.deterministic = true;
    struct Found {
      HostTensor out, lse, dq, dk, dv, all;
    };
    const auto own = [&](const HostTensor& tensor, int rank) { return shard(tensor, options.queries, rank); };
    const auto lse_of = [&](int rank) {
      return HostTensor(DType::f32, {of.batch, of.num_heads_q, options.queries.length(rank)});
    };
    std::vector<Found> cpp(2), c(2);
    tests::World world(of.ranks, kTimeout), c_world(of.ranks, kTimeout);
    tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
      Engine& computes = tests::engine_for("sm_80");
      const HostTensor q = own(whole.q, group.rank()), k = own(whole.k, group.rank()), v = own(whole.v, group.rank()),
                       dout = own(douts, group.rank());
      Found& found = cpp[static_cast<std::size_t>(group.rank())];
      found.lse = lse_of(group.rank());
      Options with_lse = options;
      with_lse.attention.lse = found.lse.view();
      found.out = HostTensor::from_device(attention(computes, group, q.view(), k.view(), v.view(), with_lse));
      const Gradients made = attention_backward(computes, group, dout.view(), q.view(), k.view(), v.view(),
                                                found.out.view(), found.lse.view(), options, backward);
      found.dq = HostTensor::from_device(made.dq);
      found.dk = HostTensor::from_device(made.dk);
      found.dv = HostTensor::from_device(made.dv);
      found.all = HostTensor::from_device(gather(computes, group, found.out.view(), options.queries));
    }));
    tests::rethrow_first(on_c_ranks(c_world, [&](int rank, flashjit_group* group) {
      const HostTensor q = own(whole.q, rank), k = own(whole.k, rank), v = own(whole.v, rank), dout = own(douts, rank);
      Found& found = c[static_cast<std::size_t>(rank)];
      found = {q, lse_of(rank), q, k, v, whole.q};
      for (HostTensor* into : {&found.out, &found.dq, &found.dk, &found.dv, &found.all})
        *into = HostTensor(into->dtype(), into->shape());
      const DlpackView q_view(q.view(), kDLCPU), k_view(k.view(), kDLCPU), v_view(v.view(), kDLCPU),
          dout_view(dout.view(), kDLCPU), out(found.out.view(), kDLCPU), lse(found.lse.view(), kDLCPU),
          dq(found.dq.view(), kDLCPU), dk(found.dk.view(), kDLCPU), dv(found.dv.view(), kDLCPU),
          all(found.all.view(), kDLCPU);
      flashjit_attention_options attention = FLASHJIT_ATTENTION_OPTIONS_INIT;
      attention.causal = 1;
      const flashjit_distributed_options distributed = options_of(of);
      flashjit_attention_options with_lse = attention;
      with_lse.lse = &lse;
      require_ok(
          flashjit_distributed_attention(engine(), group, &q_view, &k_view, &v_view, &out, &with_lse, &distributed));
      flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;
      into.dq = &dq, into.dk = &dk, into.dv = &dv, into.deterministic = 1;
      require_ok(flashjit_distributed_attention_backward(engine(), group, &dout_view, &q_view, &k_view, &v_view, &out,
                                                         &lse, &into, &attention, &distributed));
      require_ok(flashjit_distributed_gather_packed(engine(), group, &out, &all, &distributed.queries,
                                                    distributed.cu_seqlens, distributed.sequences, nullptr));
      require_ok(flashjit_distributed_agree(engine(), group));
      require_ok(flashjit_group_wait(group));
    }));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      CHECK(c[rank].out.to_doubles() == cpp[rank].out.to_doubles());
      CHECK(c[rank].lse.to_doubles() == cpp[rank].lse.to_doubles());
      CHECK(c[rank].dq.to_doubles() == cpp[rank].dq.to_doubles());
      CHECK(c[rank].dk.to_doubles() == cpp[rank].dk.to_doubles());
      CHECK(c[rank].dv.to_doubles() == cpp[rank].dv.to_doubles());
      CHECK(c[rank].all.to_doubles() == cpp[rank].all.to_doubles());
    }
  }
}

TEST_CASE("C: what one rank refuses is its status on all, and a rank that gives up one on the others and itself") {
  const AttentionCase of;
  const tests::WholeTensors whole(of);
  tests::World world(of.ranks, kTimeout);
  const Sharding sharding(of.layout, of.seqlen_q, of.ranks);
  const flashjit_distributed_options distributed = options_of(of);
  const auto call = [&](int rank, flashjit_group* group, flashjit_engine* computes) {
    const HostTensor q = shard(whole.q, sharding, rank), k = shard(whole.k, sharding, rank);
    HostTensor into(q.dtype(), q.shape());
    const DlpackView q_view(q.view(), kDLCPU), k_view(k.view(), kDLCPU), out(into.view(), kDLCPU);
    return flashjit_distributed_attention(computes, group, &q_view, &k_view, &k_view, &out, nullptr, &distributed);
  };
  const tests::TemporaryDirectory nothing;
  flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
  const std::string empty = nothing.path().string();
  options.emulate = "sm_80", options.cache_directory = empty.c_str(), options.policy = "cache_only";
  flashjit_engine* without_kernels = nullptr;
  require_ok(flashjit_engine_create(&options, &without_kernels));
  std::vector<std::string> refusals(2), failures(2), later(2);
  std::vector<flashjit_status> statuses(2), failed(2);
  std::barrier both_went_on(2);
  tests::rethrow_first(on_c_ranks(world, [&](int rank, flashjit_group* group) {
    const auto i = static_cast<std::size_t>(rank);
    statuses[i] = call(rank, group, rank == 1 ? without_kernels : engine());
    refusals[i] = flashjit_last_error();
    require_ok(call(rank, group, engine()));  // the group goes on
    both_went_on.arrive_and_wait();
    if (rank == 1) world.fail("rank 1 gave up");
    do failed[i] = call(rank, group, engine());
    while (failed[i] == FLASHJIT_OK);  // what rank 1 had sent before may have been enough for a call
    failures[i] = flashjit_last_error();
    if (flashjit_group_wait(group) != FLASHJIT_COMMUNICATION) throw std::runtime_error("the group has not failed");
    later[i] = flashjit_last_error();
  }));
  flashjit_engine_destroy(without_kernels);
  CHECK(statuses == std::vector<flashjit_status>(2, FLASHJIT_CACHE_MISS));
  CHECK(refusals[0] == "rank 1: " + refusals[1]);
  CHECK(failed == std::vector<flashjit_status>(2, FLASHJIT_COMMUNICATION));
  CHECK(failures == std::vector<std::string>(2, "group: rank 1 gave up"));
  CHECK(later == failures);
}

TEST_CASE("C: estimates are those of C++, of attention and of gradients") {
  AttentionCase of;
  of.layout = Layout::zigzag;
  of.ranks = 4;
  of.ranks_of_host = 2;
  of.seqlen_q = of.seqlen_kv = 5000;
  of.num_heads_q = 8, of.num_heads_kv = 4;
  of.options.causal = true;
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  const flashjit_whole_sizes sizes{1, 8, 4, 64, 32};
  const flashjit_distributed_options distributed = options_of(of);
  flashjit_estimate found[FLASHJIT_MOST_ESTIMATES];
  std::size_t count = 0;
  for (const int gradients : {0, 1}) {
    const std::vector<Estimate> wanted =
        (gradients ? gradient_estimates : estimates)({1, 8, 4, 64, 32}, of.distributed_options());
    require_ok(flashjit_distributed_estimates(engine(), &sizes, gradients, &options, &distributed, found, &count));
    REQUIRE(count == wanted.size());
    REQUIRE(count == FLASHJIT_MOST_ESTIMATES);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(found[i].scheme == static_cast<int>(wanted[i].scheme));
      CHECK(found[i].bytes == wanted[i].bytes);
      CHECK(found[i].calls == wanted[i].calls);
      CHECK(found[i].seconds == wanted[i].seconds);
    }
  }
  CHECK(refusal(flashjit_distributed_estimates(engine(), nullptr, 0, nullptr, &distributed, found, &count)) ==
        "sizes: must not be null");
  CHECK(refusal(flashjit_distributed_estimates(engine(), &sizes, 2, nullptr, &distributed, found, &count)) ==
        "gradients: must be 0 or 1, was 2");
}

TEST_CASE("C: wrong arguments are refused by name, and a group owns its context") {
  tests::World world(2, kTimeout);
  CRank rank(world, 0);
  flashjit_group* made = nullptr;
  const auto refused = [&](const std::function<void(flashjit_transport&)>& change) {
    flashjit_transport transport = transport_of(rank);
    change(transport);
    const std::string message = refusal(flashjit_group_from_transport(&transport, &made));
    CHECK(made == nullptr);
    return message;
  };
  CHECK(refused([](auto& c) { c.struct_size = 8; }) == "struct_size: must be sizeof(flashjit_transport), was 8");
  CHECK(refused([](auto& c) { c.rank = 2; }) == "rank: must be from 0 to 1, was 2");
  CHECK(refused([](auto& c) { c.size = 0; }) == "size: must be 1 or more, was 0");
  CHECK(refused([](auto& c) { c.device = -1; }) ==
        "device: must be a CUDA ordinal or FLASHJIT_HOST_MEMORY, -2, was -1");
  CHECK(refused([](auto& c) { c.finish = nullptr; }) == "finish: must not be null");
  CHECK(refusal(flashjit_group_from_transport(nullptr, &made)) == "transport: must not be null");
  CHECK(refusal(flashjit_group_wait(nullptr)) == "group: must not be null");
  flashjit_group_options options = FLASHJIT_GROUP_OPTIONS_INIT;
  options.timeout_ms = -1;
  const char id[FLASHJIT_UNIQUE_ID_BYTES] = {};
  CHECK(refusal(flashjit_group_from_unique_id(id, 0, 2, &options, &made)).find("timeout: must be from 1 to") == 0);
  CHECK(refusal(flashjit_group_from_nccl(nullptr, nullptr, &made)) == "communicator: must be given, was null");
  CHECK(rank.destroyed == 0);
  group_of(rank).reset();
  CHECK(rank.destroyed == 1);
  flashjit_group_destroy(nullptr);

  const CGroup group = group_of(rank);
  AttentionCase of;
  const HostTensor q = shard(tests::WholeTensors(of).q, Sharding(of.layout, of.seqlen_q, 2), 0);
  const DlpackView view(q.view(), kDLCPU);
  flashjit_distributed_options distributed = options_of(of);
  const auto call = [&](const flashjit_distributed_options* given) {
    return flashjit_distributed_attention(engine(), group.get(), &view, &view, &view, &view, nullptr, given);
  };
  CHECK(refusal(call(nullptr)) == "distributed: must not be null");
  distributed.scheme = 5;
  CHECK(refusal(call(&distributed)) == "scheme: must be from 0 to 4, was 5");
  CHECK(rank.aborts == 0);
}
