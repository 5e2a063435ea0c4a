// SPDX-License-Identifier: Apache-2.0
// How the keys of a call are split, and what its launches are given for it.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <span>
#include <tuple>

#include "flashjit/batch_plan.h"
#include "flashjit/error.h"
#include "runtime/call/operation.h"
#include "runtime/call/splits.h"

namespace {

using namespace flashjit;

constexpr int kSmCount = 132;
constexpr const char* kHopper = "hopper-q64-kv64-s2-qs2-whole-ppoff-split-splitkv";
constexpr const char* kSharedRows = "hopper-q16-kv64-s2-qs1-whole-serial-ppoff-fixed-splitkv";
constexpr const char* kMma = "mma-q64-kv32-splitkv";

void* address(std::uintptr_t index) { return reinterpret_cast<void*>(index << 40); }

struct Call {
  std::int64_t batch = 1, seqlen_q = 1, seqlen_kv = 4096, heads_q = 32, heads_kv = 8, head_dim = 128;
  DType kv_dtype = DType::bf16;
  AttentionOptions opts;

  Tensor queries(int index) const { return {address(index), DType::bf16, {batch, seqlen_q, heads_q, head_dim}}; }
  Tensor keys(int index) const { return {address(index), kv_dtype, {batch, seqlen_kv, heads_kv, head_dim}}; }
};

// What points to tensors, which live as long.
struct Validated {
  explicit Validated(const Call& of)
      : opts(of.opts),
        q(of.queries(1)),
        k(of.keys(2)),
        v(of.keys(3)),
        out(of.queries(4)),
        call(runtime::validate_inputs(q, k, v, opts)) {
    runtime::validate_out(call, out);
  }
  Validated(const Validated&) = delete;
  Validated& operator=(const Validated&) = delete;

  AttentionOptions opts;
  Tensor q, k, v, out;
  runtime::ForwardCall call;
};

runtime::Splitting splitting(const Call& call, const char* variant = kHopper) {
  return runtime::splitting_of(Validated(call).call, parse_variant(variant), kSmCount);
}

Call of(std::int64_t batch, std::int64_t seqlen_kv) {
  Call call;
  call.batch = batch, call.seqlen_kv = seqlen_kv;
  return call;
}

}  // namespace

TEST_CASE("as many splits as give no more tiles than multiprocessors, none too short, and none where one would do") {
  struct {
    std::int64_t batch, seqlen_kv, count, keys;
  } const cases[] = {{1, 131072, 16, 8192}, {1, 4096, 16, 256}, {1, 1024, 8, 128}, {1, 129, 2, 128},
                     {1, 128, 1, 0},        {2, 4096, 8, 512},  {3, 4096, 5, 832}, {8, 16384, 2, 8192},
                     {9, 16384, 1, 0},      {64, 8192, 1, 0}};
  for (const auto& [batch, seqlen_kv, count, keys] : cases) {
    CAPTURE(batch);
    CAPTURE(seqlen_kv);
    const runtime::Splitting of_call = splitting(of(batch, seqlen_kv));
    CHECK(of_call.count == count);
    CHECK(of_call.keys == keys);
    CHECK(of_call.any() == (count > 1));
    if (count == 1) continue;
    CHECK(of_call.slots == count * batch * 8);
    CHECK(of_call.slots <= kSmCount);
    CHECK(of_call.rows == 4);  // of a query of each head of a group
    CHECK(of_call.count * of_call.keys >= seqlen_kv);
    CHECK((of_call.count - 1) * of_call.keys < seqlen_kv);
  }
}

TEST_CASE("the mma family packs heads where it splits keys, and nowhere else") {
  const runtime::Splitting of_call = splitting(of(1, 4096), kMma);
  CHECK(of_call.count == 16);
  CHECK(of_call.keys == 256);
  CHECK(of_call.rows == 4);
  const Validated with(of(1, 4096));
  CHECK(runtime::tiling_of(with.call, parse_variant(kMma)).packed_heads == 4);
  CHECK(runtime::tiling_of(with.call, parse_variant("mma-q64-kv32")).packed_heads == 1);
}

TEST_CASE("queries of a tile that stand in two chunks see the keys of both") {
  Call call = of(1, 515);
  call.seqlen_q = 20, call.heads_q = 8, call.heads_kv = 1;
  call.opts.chunk = 248;
  const runtime::Splitting chunks = splitting(call);
  CHECK(chunks.keys * (chunks.count - 1) >= 2 * call.opts.chunk);  // one more for where the first one begins
  call.opts.causal = true;
  CHECK(splitting(call).keys * (splitting(call).count - 1) >= call.opts.chunk + 7);  // of 8 queries
}

TEST_CASE("how long the sequences of a ragged batch may be says nothing of what the device splits") {
  Call call = of(2, 4096);
  const Tensor used(address(5), DType::i32, {2});
  call.opts.seqused_kv = used;
  call.opts.max_seqlen_kv = 100;
  const Validated ragged(call);
  const runtime::Tiling tiling = runtime::tiling_of(ragged.call, parse_variant(kHopper));
  CHECK(runtime::seen_keys(ragged.call, tiling) == std::numeric_limits<std::int32_t>::max());
  call.opts.window = {99, 0};
  CHECK(runtime::seen_keys(Validated(call).call, tiling) == 99 + 16);
}

TEST_CASE("of keys that a window or chunks hide no splits are made, and one more for where the others begin") {
  Call call = of(1, 131072);
  call.opts.window = {1000, 0};
  const runtime::Splitting of_window = splitting(call);
  CHECK(of_window.keys == 128);
  CHECK(of_window.count == 9);
  call.opts.window = {}, call.opts.chunk = 500;
  CHECK(splitting(call).count == 5);
}

TEST_CASE("where warps share rows clusters split the keys of a tile, in half as many blocks as multiprocessors") {
  for (const auto& [batch, seqlen_kv, cluster] : {std::tuple{1, 4096, 8},
                                                  {2, 2048, 4},
                                                  {4, 4096, 2},
                                                  {4, 511, 1},  // pairs save little
                                                  {8, 4096, 1},
                                                  {1, 1023, 4},  // none has fewer than 128 keys
                                                  {1, 300, 1},
                                                  {4, 16384, 2},
                                                  {8, 16384, 1}}) {
    CAPTURE(batch);
    CAPTURE(seqlen_kv);
    const runtime::Splitting split = splitting(of(batch, seqlen_kv), kSharedRows);
    CHECK(split.cluster == cluster);
    CHECK(!split.any());
    CHECK(splitting(of(batch, seqlen_kv)).cluster == 1);
  }
}

TEST_CASE("where warps share rows the grid splits the keys of a tile that has many, in as many blocks") {
  const runtime::Splitting alone = splitting(of(1, 65536), kSharedRows);
  CHECK(alone.cluster == 1);
  CHECK(alone.count == 8);
  CHECK(splitting(of(2, 65536), kSharedRows).count == 4);
  CHECK(splitting(of(1, 8192), kSharedRows).count == 1);
}

TEST_CASE("in place of clusters of four the grid splits the keys of a tile from fewer on") {
  const runtime::Splitting split = splitting(of(2, 4096), kSharedRows);
  CHECK(split.cluster == 1);
  CHECK(split.count == 4);
}

TEST_CASE("keys of 8 bits are split for more blocks, in clusters only where head dims are small") {
  const Tensor used(address(5), DType::i32, {1});
  for (const bool is_small : {false, true}) {
    CAPTURE(is_small);
    const auto stored = [&](std::int64_t batch, std::int64_t seqlen_kv) {
      Call call = of(batch, seqlen_kv);
      call.kv_dtype = DType::e4m3, call.head_dim = is_small ? 64 : 128;
      return call;
    };
    CHECK(splitting(stored(1, 65536), kSharedRows).count == 16);
    CHECK(splitting(stored(4, 4096), kSharedRows).cluster == (is_small ? 4 : 2));
    Call ragged = stored(1, 16384);
    ragged.opts.seqused_kv = used;
    CHECK(splitting(ragged, kSharedRows).wanted_tiles == (is_small ? 2 : 1) * kSmCount);
  }
}

TEST_CASE("of a ragged batch the device splits what there is, whatever the kernel") {
  Call call = of(2, 4096);
  const Tensor used(address(5), DType::i32, {2});
  call.opts.seqused_kv = used;
  for (const char* variant : {kHopper, kSharedRows}) {
    CHECK(splitting(call, variant).cluster == 1);
    CHECK(splitting(call, variant).wanted_tiles == kSmCount);
  }
}

TEST_CASE("of a ragged batch of few tiles clusters split what cannot be long, where warps share rows") {
  for (const auto& [batch, seqlen_kv, cluster, device] : {std::tuple{1, 8192, 8, false},
                                                          {1, 8193, 1, true},
                                                          {2, 2048, 4, false},
                                                          {2, 2049, 1, true},
                                                          {4, 2048, 2, false},
                                                          {4, 2049, 1, true},  // a pair for the longest is not enough
                                                          {8, 1024, 1, false},
                                                          {8, 1025, 1, true},
                                                          {9, 1024, 1, true}}) {  // more tiles than are wanted
    CAPTURE(batch);
    CAPTURE(seqlen_kv);
    Call call = of(batch, seqlen_kv);
    const Tensor used(address(5), DType::i32, {batch});
    call.opts.seqused_kv = used;
    const runtime::Splitting split = splitting(call, kSharedRows);
    CHECK(split.cluster == cluster);
    CHECK(split.any() == device);
    CHECK(splitting(call, kHopper).any());
  }
}

TEST_CASE("the launch says how large such a cluster is, and has as many blocks for each tile") {
  const Validated with(of(2, 2048));
  const generator::KernelSpec spec(with.call.problem, parse_variant(kSharedRows), find_architecture("sm_90a"));
  runtime::Operation operation(with.call, spec, {264, kSmCount}, nullptr);
  REQUIRE(operation.end() - operation.begin() == 1);
  const runtime::Launch& attention = operation.begin()[0];
  CHECK(attention.sizes_cluster);
  CHECK(attention.cluster == 4);
  CHECK(attention.blocks == 2 * 8 * 4);
  runtime::Operation few(with.call, spec, {20, kSmCount}, nullptr);
  CHECK(few.begin()->blocks == 20);
}

TEST_CASE("variants without it, and calls without keys or queries, are not split") {
  CHECK(!splitting(of(1, 4096), "hopper-q64-kv64-s2-qs2-whole-ppoff-split").any());
  CHECK(!splitting(of(1, 0), kMma).any());
  Call call = of(1, 4096);
  call.seqlen_q = 0;
  CHECK(!splitting(call).any());
}

TEST_CASE("a split call is two launches: batch entries once for each split, then a block for each row") {
  const Validated with(of(2, 4096));
  const generator::KernelSpec spec(with.call.problem, parse_variant(kHopper), find_architecture("sm_90a"));
  const runtime::DeviceLimits limits{264, kSmCount};
  const std::size_t bytes = runtime::Operation::scratch_bytes(with.call, spec, limits);
  CHECK(bytes == 128 * 4 * (128 + 2) * sizeof(float));
  std::byte* const memory = static_cast<std::byte*>(address(9));
  runtime::Operation operation(with.call, spec, limits, memory);
  REQUIRE(operation.end() - operation.begin() == 2);
  const runtime::Launch& attention = operation.begin()[0];
  const runtime::Launch& combine = operation.begin()[1];
  CHECK(attention.turn == generator::Turn::attention);
  CHECK(attention.blocks == 128);
  generator::HopperArguments core;
  std::memcpy(static_cast<void*>(&core), attention.arguments, sizeof(core));
  CHECK(core.sizes.batch == 16);
  generator::SplitArguments splits;
  std::memcpy(&splits, attention.arguments + sizeof(core), sizeof(splits));
  CHECK(splits.partials == static_cast<void*>(memory));
  CHECK(splits.batch == 2);
  CHECK(splits.keys == 512);
  CHECK(splits.planned_keys == nullptr);
  CHECK(combine.turn == generator::Turn::combine);
  CHECK(combine.overlaps);
  CHECK(combine.blocks == 16 * 4);
}

TEST_CASE(
    "of a ragged batch blocks of tiles of few rows join splits themselves, in memory that the list's launch clears") {
  Call ragged = of(2, 4096);
  const Tensor used(address(5), DType::i32, {2});
  ragged.opts.seqused_kv = used;
  const Validated with(ragged);
  std::byte* const memory = static_cast<std::byte*>(address(9));
  for (const char* variant : {kHopper, kSharedRows}) {
    CAPTURE(variant);
    const bool joins = variant == kSharedRows;
    const generator::KernelSpec spec(with.call.problem, parse_variant(variant), find_architecture("sm_90a"));
    runtime::Operation operation(with.call, spec, {264, kSmCount}, memory);
    REQUIRE(operation.end() - operation.begin() == (joins ? 2 : 3));
    generator::BatchPlanMaker maker;
    std::memcpy(static_cast<void*>(&maker), operation.begin()[0].arguments, sizeof(maker));
    CHECK((maker.counters != nullptr) == joins);
    if (!joins) continue;
    generator::SplitArguments splits;
    std::memcpy(&splits, operation.begin()[1].arguments + sizeof(generator::HopperArguments), sizeof(splits));
    CHECK(maker.counters == splits.counters);
    const auto slots = static_cast<std::size_t>(splitting(ragged, variant).slots);
    CHECK(reinterpret_cast<std::byte*>(splits.counters + slots) ==
          memory + runtime::Operation::scratch_bytes(with.call, spec, {264, kSmCount}));
    CHECK(static_cast<void*>(splits.counters) == splits.weights + 2 * slots * static_cast<std::size_t>(splits.rows));
  }
}

TEST_CASE("with a plan blocks of tiles of few rows join splits of any batch, with counters at the end of its memory") {
  const Call call = of(1, 65536);
  const Validated with(call);
  const Variant shared = parse_variant(kSharedRows), other = parse_variant(kHopper);
  CHECK_FALSE(runtime::joins_splits(with.call, shared));  // nobody has cleared any
  const BatchPlan plan;
  runtime::ForwardCall planned = with.call;
  planned.plan = &plan;
  CHECK(runtime::joins_splits(planned, shared));
  CHECK_FALSE(runtime::joins_splits(planned, other));
  const generator::KernelSpec spec(with.call.problem, shared, find_architecture("sm_90a"));
  const std::size_t bytes = runtime::Operation::scratch_bytes(with.call, spec, {264, kSmCount});
  const Tensor memory(address(9), DType::i32, {static_cast<std::int64_t>(bytes / sizeof(std::int32_t))});
  const std::span<std::byte> counters = runtime::counters_of_plan(with.call, shared, memory, kSmCount);
  const auto slots = static_cast<std::size_t>(splitting(call, kSharedRows).slots);
  CHECK(slots > 0);
  CHECK(counters.size() >= slots * sizeof(unsigned));
  CHECK(counters.data() + counters.size() == static_cast<std::byte*>(memory.data) + bytes);
  CHECK(runtime::counters_of_plan(with.call, other, memory, kSmCount).empty());
  const Validated of_clusters(of(1, 4096));
  CHECK(runtime::counters_of_plan(of_clusters.call, shared, memory, kSmCount).empty());
}

TEST_CASE("splitkv goes with neither multicast nor the kernel of the ablation") {
  const Problem problem{.dtype = DType::bf16, .head_dim = 128, .head_dim_v = 128};
  const Architecture& architecture = find_architecture("sm_90a");
  CHECK_NOTHROW(generator::KernelSpec(problem, parse_variant(kHopper), architecture));
  CHECK_THROWS_AS(generator::KernelSpec(problem, parse_variant("hopper-kv64-whole-fixed-cl2-splitkv"), architecture),
                  Error);
  CHECK_THROWS_AS(generator::KernelSpec(problem, parse_variant("hopper-kv64-psmem-splitkv"), architecture), Error);
}
