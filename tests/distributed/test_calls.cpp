// SPDX-License-Identifier: Apache-2.0
// What calls over shards take and promise beside schemes and masks: shapes, options, views, bits, and bytes that move.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/attention_case.h"
#include "tests/support/emulating_engine.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr std::chrono::seconds kTimeout{60};
constexpr Scheme kSchemes[] = {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level};
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::zigzag, Layout::striped};

Engine& engine() { return tests::engine_for("sm_80"); }

tests::WholeResult result_of(const AttentionCase& of, const std::string& architecture = "sm_80") {
  tests::World world(of.ranks, kTimeout);
  return tests::attention_over_shards(tests::engine_for(architecture), world, of);
}

void expect_right(const AttentionCase& of, const std::string& architecture = "sm_80") {
  CAPTURE(of.text());
  CHECK(tests::is_right(result_of(of, architecture), of, tests::engine_for(architecture)));
}

AttentionCase causal_case(Scheme scheme, Layout layout = Layout::zigzag) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = layout;
  of.ranks = 4;
  of.ranks_of_host = 2;
  of.num_heads_q = 8;
  of.num_heads_kv = 4;
  of.options.causal = true;
  return of;
}

}  // namespace

TEST_CASE("batches, other numbers of queries than of keys, dtypes, head dims and families") {
  for (const Scheme scheme : kSchemes)
    for (const Layout layout : kLayouts) {
      AttentionCase of = causal_case(scheme, layout);
      of.batch = 2;
      expect_right(of);
      of.seqlen_q = 11;  // the last ones: fewer than keys
      expect_right(of);
      of.seqlen_q = 50, of.seqlen_kv = 19;  // of which the first see nothing
      expect_right(of);
      of.options.causal = false;
      of.options.window = {6, 2};
      expect_right(of);
    }
  for (const Scheme scheme : kSchemes) {
    AttentionCase of = causal_case(scheme);
    of.dtype = DType::f16;
    expect_right(of);
    of.dtype = DType::bf16;
    of.head_dim = 64;
    of.seqlen_q = of.seqlen_kv = 70;
    expect_right(of, "sm_90a");
  }
}

TEST_CASE("beside an exchange blocks draw their tiles, where they would share them out beforehand") {
  std::mutex mutex;
  std::set<std::string> kernels;
  EngineOptions options = tests::emulating("sm_90a");
  options.log = [&](LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    std::smatch name;
    if (std::regex_search(line, name, std::regex("fwd-[^ :]*"))) kernels.insert(name.str());
  };
  Engine engine(options);
  AttentionCase of;
  of.scheme = Scheme::ring;
  of.ranks = 2;
  of.head_dim = 128;
  of.seqlen_q = of.seqlen_kv = 256;
  of.num_heads_q = of.num_heads_kv = 80;  // a tile each, more than half as many as multiprocessors
  tests::World world(of.ranks, kTimeout);
  const tests::WholeResult found = tests::attention_over_shards(engine, world, of);
  CHECK(tests::is_right(found, of, engine));
  REQUIRE(kernels.size() == 2);  // the second one where nothing comes any more
  CHECK(std::regex_replace(*kernels.begin(), std::regex("-dynamic-"), "-fixed-") == *kernels.rbegin());
  CHECK(kernels.begin()->find("-dynamic-") != std::string::npos);
}

TEST_CASE("beside an exchange an engine takes a kernel of its own, whatever another one took in the same group") {
  tests::World world(2, kTimeout);
  tests::rethrow_first(tests::on_ranks(world, [](Group& group) {
    const HostTensor rows = HostTensor::random_normal(DType::bf16, {1, 128, 80, 128}, 1);
    const Tensor x = rows.view();
    const Options options{Sharding(Layout::contiguous, 256, 2), std::nullopt, {}, Scheme::ring};
    for (const char* architecture : {"sm_90a", "sm_80"})
      CHECK_NOTHROW(distributed::attention(tests::engine_for(architecture), group, x, x, x, options));
  }));
}

TEST_CASE("one key/value head for many, and more ranks than key/value heads") {
  for (const auto& [heads, heads_kv] : {std::pair{8, 1}, {8, 2}, {4, 4}, {12, 4}})
    for (const Scheme scheme : kSchemes) {
      AttentionCase of = causal_case(scheme);
      of.num_heads_q = heads;
      of.num_heads_kv = heads_kv;
      expect_right(of);
    }
}

TEST_CASE("no queries, no keys, and neither") {
  for (const Scheme scheme : kSchemes)
    for (const auto& [queries, keys] : {std::pair{0, 9}, {9, 0}, {0, 0}, {1, 1}}) {
      AttentionCase of = causal_case(scheme, Layout::contiguous);
      of.seqlen_q = queries;
      of.seqlen_kv = keys;
      expect_right(of);
    }
}

TEST_CASE("a scale, a cap and sinks hold for the whole, in every scheme") {
  const HostTensor sinks = HostTensor::random_normal(DType::f32, {8}, 5);
  for (const Scheme scheme : kSchemes)
    for (const Layout layout : kLayouts) {
      AttentionCase of = causal_case(scheme, layout);
      of.options.softmax_scale = 0.4f;
      of.options.softcap = 2.0f;
      of.options.sinks = sinks.view();
      expect_right(of);
      of.options.causal = false;
      of.options.window = {3, 0};
      of.seqlen_q = 50;  // rows without a key have their sinks
      expect_right(of);
    }
}

TEST_CASE("calls with whole sequences take what positions in parts of them cannot serve") {
  const HostTensor slopes = HostTensor::random_normal(DType::f32, {8}, 5);
  HostTensor documents(DType::i32, {1, 37}), prefix(DType::i32, {1});
  for (int i = 0; i < 37; ++i) store_element(documents.data(), DType::i32, i, i / 9);
  store_element(prefix.data(), DType::i32, 0, 12);
  for (const Layout layout : kLayouts) {
    AttentionCase of = causal_case(Scheme::all_to_all, layout);
    of.options.chunk = 10;
    expect_right(of);
    of.options = {};
    of.options.alibi_slopes = slopes.view();
    expect_right(of);
    of.options = {};
    of.options.documents = documents.view();
    expect_right(of);
    of.options = {};
    of.options.prefix = prefix.view();
    expect_right(of);
    of.ranks = of.ranks_of_host = 1;
    of.scheme = Scheme::ring;
    expect_right(of);
  }
}

TEST_CASE("functions of scores and masks see the positions of the whole, and what they capture is of the whole") {
  const HostTensor slopes = HostTensor::random_normal(DType::f32, {8}, 5);
  HostTensor documents(DType::i32, {64});
  for (int i = 0; i < 64; ++i) store_element(documents.data(), DType::i32, i, i / 10);
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring})
    for (const Layout layout : {Layout::contiguous, Layout::zigzag})
      for (const bool causal : {true, false}) {
        AttentionCase of = causal_case(scheme, layout);
        of.seqlen_q = of.seqlen_kv = 50;
        of.options.causal = causal;
        of.options.mask = Mask("document(query) == document(key)", {{"document", documents.view()}});
        expect_right(of);
        of.options.mask.reset();
        of.options.score = Score("score - slope(head) * abs(query - key)", {{"slope", slopes.view()}});
        expect_right(of);
        of.options.score = Score("score - seqlen_slope(head) * abs(query - key)", {{"seqlen_slope", slopes.view()}});
        expect_right(of);  // a name of the caller's, which does not ask for lengths
        of.seqlen_q = 21;  // positions of queries begin with 0 where functions count them
        of.batch = 2;
        expect_right(of);
      }
}

TEST_CASE("bits are the same in every run, with and without an LSE, and in any order of ranks") {
  for (const Scheme scheme : kSchemes)
    for (const Layout layout : kLayouts) {
      const AttentionCase of = causal_case(scheme, layout);
      CAPTURE(of.text());
      const tests::WholeResult first = result_of(of);
      CHECK(tests::is_same(first, result_of(of)));
      const tests::WholeTensors whole(of);
      tests::World world(of.ranks, kTimeout);
      const Options options = of.distributed_options();
      std::vector<HostTensor> outs(4);
      tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
        const int rank = group.rank();
        std::this_thread::sleep_for(std::chrono::milliseconds((3 - rank) * 5));
        const HostTensor q = shard(whole.q, options.queries, rank), k = shard(whole.k, *options.keys, rank),
                         v = shard(whole.v, *options.keys, rank);
        HostTensor out(q.dtype(), q.shape());
        attention(engine(), group, q.view(), k.view(), v.view(), out.view(), options);
        outs[static_cast<std::size_t>(rank)] = std::move(out);
      }));
      CHECK(gather(outs, options.queries).to_doubles() == first.out.to_doubles());
    }
}

TEST_CASE("tensors may lie in memory heads first, and several calls may follow one another") {
  for (const Scheme scheme : kSchemes) {
    AttentionCase of = causal_case(scheme);
    of.batch = 2;
    CAPTURE(of.text());
    const tests::WholeTensors whole(of);
    const Options options = of.distributed_options();
    tests::World world(of.ranks, kTimeout);
    std::vector<HostTensor> outs(4);
    const auto heads_first = [](const HostTensor& tensor) {
      const Dims& shape = tensor.shape();
      return Tensor(nullptr, tensor.dtype(), shape, {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1});
    };
    const auto laid_out = [&](const HostTensor& tensor, HostTensor& memory) {
      Tensor view = heads_first(tensor);
      memory = HostTensor(tensor.dtype(), tensor.shape());
      view.data = memory.data();
      const Dims& shape = tensor.shape();
      std::int64_t from = 0;
      for (std::int64_t b = 0; b < shape[0]; ++b)
        for (std::int64_t i = 0; i < shape[1]; ++i)
          for (std::int64_t h = 0; h < shape[2]; ++h)
            for (std::int64_t d = 0; d < shape[3]; ++d)
              store_element(memory.data(), tensor.dtype(),
                            b * view.strides[0] + i * view.strides[1] + h * view.strides[2] + d,
                            load_element(tensor.data(), tensor.dtype(), from++));
      return view;
    };
    tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
      const int rank = group.rank();
      const HostTensor q = shard(whole.q, options.queries, rank), k = shard(whole.k, *options.keys, rank),
                       v = shard(whole.v, *options.keys, rank);
      HostTensor of_q, of_k, of_v;
      for (int i = 0; i < 2; ++i)
        outs[static_cast<std::size_t>(rank)] = HostTensor::from_device(
            attention(engine(), group, laid_out(q, of_q), laid_out(k, of_k), laid_out(v, of_v), options));
    }));
    const HostTensor found = gather(outs, options.queries);
    const reference::Result exact = reference::attention(whole.q.view(), whole.k.view(), whole.v.view(), of.options),
                            low = reference::attention_in_low_precision(whole.q.view(), whole.k.view(), whole.v.view(),
                                                                        of.options);
    CHECK(reference::compare(found, exact, low).passed);
    CHECK(world.is_empty());
  }
}

TEST_CASE("device tensors are sharded by a copy and gathered on every rank") {
  for (const Layout layout : kLayouts)
    for (const int ranks : {1, 3, 4}) {
      const Sharding sharding(layout, 11, ranks);
      const HostTensor whole = HostTensor::random_normal(DType::f16, {2, 11, 3, 16}, 7);
      tests::World world(ranks, kTimeout);
      tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
        const DeviceTensor own = shard(engine(), group, whole.view(), sharding);
        const bool is_own =
            HostTensor::from_device(own).to_doubles() == shard(whole, sharding, group.rank()).to_doubles();
        const DeviceTensor all = gather(engine(), group, own, sharding);
        const bool is_whole = HostTensor::from_device(all).to_doubles() == whole.to_doubles();
        HostTensor into(whole.dtype(), whole.shape());
        gather(engine(), group, own, into.view(), sharding);
        if (!is_own || !is_whole || into.to_doubles() != whole.to_doubles())
          throw std::runtime_error("a shard or what was gathered of them is wrong");
      }));
    }
}

namespace {

// Of keys that a rank's queries see and it does not have, and of their values, by positions one at a time.
std::uint64_t bytes_wanted(const AttentionCase& of, int rank) {
  const Options options = of.distributed_options();
  const auto positions = [](const Sharding& sharding, int of_rank) {
    std::set<std::int64_t> all;
    for (const Span& span : sharding.spans(of_rank))
      for (std::int64_t i = 0; i < span.count; ++i) all.insert(span.first + i * span.step);
    return all;
  };
  const Window& window = of.options.window;
  const std::int64_t right = of.options.causal ? 0 : window.right;
  std::uint64_t rows = 0;
  for (int peer = 0; peer < of.ranks; ++peer) {
    if (peer == rank) continue;
    for (const std::int64_t key : positions(*options.keys, peer)) {
      const auto own = positions(options.queries, rank);
      rows += std::any_of(own.begin(), own.end(), [&](std::int64_t query) {
        return (window.left < 0 || key >= query - window.left) && (right < 0 || key <= query + right);
      });
    }
  }
  return rows * static_cast<std::uint64_t>(of.num_heads_kv * of.head_dim * 2 * 2);
}

}  // namespace

TEST_CASE("only the keys and values move that a rank's queries see, each once") {
  for (const Scheme scheme : {Scheme::all_gather, Scheme::ring})
    for (const Layout layout : kLayouts)
      for (const Window window : {Window{}, Window{-1, 0}, Window{9, 0}, Window{4, 3}}) {
        AttentionCase of = causal_case(scheme, layout);
        of.seqlen_q = of.seqlen_kv = 64;
        of.options.causal = window == Window{-1, 0};
        of.options.window = of.options.causal ? Window{} : window;
        CAPTURE(of.text());
        tests::World world(of.ranks, kTimeout);
        tests::attention_over_shards(engine(), world, of);
        for (int rank = 0; rank < of.ranks; ++rank) CHECK(world.bytes_to(rank) == bytes_wanted(of, rank));
      }
}

TEST_CASE("the estimate counts the bytes that move") {
  for (const Scheme scheme : kSchemes) {
    AttentionCase of = causal_case(scheme, Layout::contiguous);
    of.seqlen_q = of.seqlen_kv = 64;
    CAPTURE(of.text());
    tests::World world(of.ranks, kTimeout);
    const tests::WholeTensors whole(of);
    const Options options = of.distributed_options();
    tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
      const HostTensor q = shard(whole.q, options.queries, group.rank()),
                       k = shard(whole.k, *options.keys, group.rank()), v = shard(whole.v, *options.keys, group.rank());
      attention(engine(), group, q.view(), k.view(), v.view(), options);
    }));
    std::uint64_t most = 0;
    for (const int rank : {0, 2, 3}) most = std::max(most, world.bytes_to(rank));
    bool is_found = false;
    for (const Estimate& estimate : estimates({1, 8, 4, 16, 16, DType::bf16}, options))
      if (estimate.scheme == scheme) {
        is_found = true;
        CHECK(static_cast<std::uint64_t>(estimate.bytes) == most);
      }
    CHECK(is_found);
  }
}
