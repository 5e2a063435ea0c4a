// SPDX-License-Identifier: Apache-2.0
// Ranks that die, faults on the way, and what is refused by name.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "distributed/plan.h"
#include "distributed/support.h"
#include "tests/distributed/attention_case.h"
#include "tests/support/emulating_engine.h"
#include "tests/support/error_code.h"
#include "tests/support/plant.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using namespace flashjit::distributed;
using tests::AttentionCase;

constexpr std::chrono::seconds kTimeout{60};

AttentionCase zigzag_case(Scheme scheme) {
  AttentionCase of;
  of.scheme = scheme;
  of.layout = Layout::zigzag;
  of.ranks = 4;
  of.ranks_of_host = 2;
  of.seqlen_q = of.seqlen_kv = 64;
  of.num_heads_q = 8;
  of.num_heads_kv = 4;
  of.options.causal = true;
  return of;
}

constexpr Scheme kSchemes[] = {Scheme::all_gather, Scheme::ring, Scheme::all_to_all, Scheme::two_level};

void attend(Group& group, const AttentionCase& of, const Options& options) {
  const tests::WholeTensors whole(of);
  const Options truth = of.distributed_options();
  const HostTensor q = shard(whole.q, truth.queries, group.rank()), k = shard(whole.k, *truth.keys, group.rank()),
                   v = shard(whole.v, *truth.keys, group.rank());
  attention(tests::engine_for("sm_80"), group, q.view(), k.view(), v.view(), options);
}

std::string message_of(const std::exception_ptr& thrown, ErrorCode code) {
  REQUIRE(thrown);
  std::string message;
  CHECK(tests::code_of([&] { std::rethrow_exception(thrown); }, &message) == code);
  return message;
}

}  // namespace

TEST_CASE("a rank that gives up, or that is not there, is an Error on every other rank and no hang") {
  for (const Scheme scheme : kSchemes)
    for (const bool says_so : {true, false}) {
      const AttentionCase of = zigzag_case(scheme);
      CAPTURE(of.text());
      tests::World world(of.ranks, says_so ? std::chrono::milliseconds(kTimeout) : std::chrono::milliseconds(300));
      const auto begin = std::chrono::steady_clock::now();
      const auto thrown = tests::on_ranks(world, [&](Group& group) {
        if (group.rank() == 1) {
          if (says_so) group.transport().abort();
          throw std::runtime_error("killed");
        }
        attend(group, of, of.distributed_options());
        // All that this rank waits for may have come before the other one died: then it is the next call that tells.
        std::this_thread::sleep_for(std::chrono::milliseconds(says_so ? 0 : 600));
        group.wait();
      });
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
      for (const int rank : {0, 2, 3})
        CHECK(message_of(thrown[static_cast<std::size_t>(rank)], ErrorCode::communication).find("group: rank ") == 0);
    }
}

TEST_CASE("a call that fails on one rank fails on all") {
  const AttentionCase of = zigzag_case(Scheme::ring);
  tests::World world(of.ranks, kTimeout);
  EngineOptions broken = tests::emulating("sm_80");
  broken.emulation.most_instructions = 10;  // every kernel is at fault
  Engine engine(broken);
  const tests::WholeTensors whole(of);
  const Options options = of.distributed_options();
  const auto thrown = tests::on_ranks(world, [&](Group& group) {
    if (group.rank() != 3) return attend(group, of, options);
    const HostTensor q = shard(whole.q, options.queries, 3), k = shard(whole.k, *options.keys, 3);
    attention(engine, group, q.view(), k.view(), k.view(), options);
  });
  message_of(thrown[3], ErrorCode::kernel_fault);
  for (const std::size_t rank : {0u, 1u, 2u}) message_of(thrown[rank], ErrorCode::communication);
}

TEST_CASE("tensors that one rank cannot gather are an Error on all") {
  const Sharding sharding(Layout::zigzag, 64, 3);
  tests::World world(3, kTimeout);
  EngineOptions broken = tests::emulating("sm_80");
  broken.emulation.most_instructions = 10;
  Engine engine(broken);
  const HostTensor whole(DType::bf16,
                         {2, 64, 2, 16});  // of two batches, a rank's parts are not packed: they are copied
  const auto thrown = tests::on_ranks(world, [&](Group& group) {
    const HostTensor own = shard(whole, sharding, group.rank());
    gather(group.rank() == 0 ? engine : tests::engine_for("sm_80"), group, own.view(), sharding);
  });
  message_of(thrown[0], ErrorCode::kernel_fault);
  for (const std::size_t rank : {1u, 2u})
    CHECK(message_of(thrown[rank], ErrorCode::communication) == "group: rank 0 gave up");
}

namespace {

// A call that some ranks refuse, and then one like it, or its like, that all can do.
struct RefusedCall {
  AttentionCase of;                           // what is right
  std::function<Options(int rank)> refused;   // what is asked for first, by each rank
  std::function<Engine&(int rank)> computes;  // on which engine
};

// What each rank was told, and whether nothing was sent and the call that followed was right.
std::vector<std::exception_ptr> refusals(const RefusedCall& call) {
  const AttentionCase& of = call.of;
  const tests::WholeTensors whole(of);
  const Options truth = of.distributed_options();
  tests::World world(of.ranks, kTimeout);
  std::vector<std::exception_ptr> told(static_cast<std::size_t>(of.ranks));
  std::vector<HostTensor> outs(told.size());
  tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const HostTensor q = shard(whole.q, truth.queries, group.rank()), k = shard(whole.k, *truth.keys, group.rank()),
                     v = shard(whole.v, *truth.keys, group.rank());
    try {
      attention(call.computes(group.rank()), group, q.view(), k.view(), v.view(), call.refused(group.rank()));
    } catch (const Error&) {
      told[rank] = std::current_exception();
    }
    if (world.bytes_to(group.rank()) != 0) throw std::runtime_error("something was sent");
    outs[rank] =
        HostTensor::from_device(attention(tests::engine_for("sm_80"), group, q.view(), k.view(), v.view(), truth));
  }));
  const reference::Result exact = reference::attention(whole.q.view(), whole.k.view(), whole.v.view(), of.options),
                          low = reference::attention_in_low_precision(whole.q.view(), whole.k.view(), whole.v.view(),
                                                                      of.options);
  CHECK(reference::compare(gather(outs, truth.queries), exact, low).passed);
  return told;
}

Engine& working_engine(int) { return tests::engine_for("sm_80"); }

}  // namespace

TEST_CASE(
    "what one rank has no kernel for is refused by all, by its name, before anything is sent, and the group goes on") {
  EngineOptions options = tests::emulating("sm_80");
  const tests::TemporaryDirectory nothing;
  options.cache_directory = nothing.path().string();
  options.policy = Policy::cache_only;
  Engine empty(options);
  for (const Scheme scheme : kSchemes) {
    const AttentionCase of = zigzag_case(scheme);
    CAPTURE(of.text());
    const auto told = refusals({of, [&](int) { return of.distributed_options(); },
                                [&](int rank) -> Engine& { return rank == 2 ? empty : tests::engine_for("sm_80"); }});
    const std::string of_2 = message_of(told[2], ErrorCode::cache_miss);
    for (const std::size_t rank : {0u, 1u, 3u})
      CHECK(message_of(told[rank], ErrorCode::cache_miss) == "rank 2: " + of_2);
  }
}

TEST_CASE("options that engines refuse are refused before anything is sent, and the group goes on") {
  AttentionCase of = zigzag_case(Scheme::all_to_all);
  HostTensor documents(DType::i32, {1, 63});
  Options wrong = of.distributed_options();
  wrong.attention.documents = documents.view();
  const auto of_documents = refusals({of, [&](int) { return wrong; }, working_engine});
  of = zigzag_case(Scheme::ring);
  Options misspelt = of.distributed_options();
  misspelt.attention.score = Score("scroe");
  const auto of_score = refusals({of, [&](int) { return misspelt; }, working_engine});
  Options steep = of.distributed_options();
  steep.attention.softcap = 1e9f;
  const auto of_softcap = refusals({of, [&](int) { return steep; }, working_engine});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(message_of(of_documents[rank], ErrorCode::invalid_argument).find("documents: ") == 0);
    CHECK(message_of(of_score[rank], ErrorCode::compile_failed).find("scroe") != std::string::npos);
    CHECK(message_of(of_softcap[rank], ErrorCode::invalid_argument).find("softcap: ") == 0);
  }
}

TEST_CASE("with new lengths ranks do not agree anew, and what all of them refuse then ends no group") {
  constexpr int kRanks = 2;
  tests::World world(kRanks, kTimeout);
  const auto thrown = tests::on_ranks(world, [&](Group& group) {
    const auto call = [&](std::int64_t length, const std::optional<Tensor>& documents = {}) {
      AttentionCase of;
      of.ranks = kRanks, of.scheme = Scheme::all_to_all, of.options.causal = true;
      of.seqlen_q = of.seqlen_kv = length;
      of.options.documents = documents;
      const tests::WholeTensors whole(of);
      const Options options = of.distributed_options();
      const HostTensor q = shard(whole.q, options.queries, group.rank()),
                       k = shard(whole.k, *options.keys, group.rank()), v = shard(whole.v, *options.keys, group.rank());
      attention(tests::engine_for("sm_80"), group, q.view(), k.view(), v.view(), options);
    };
    const HostTensor documents(DType::i32, {1, 45}), too_few(DType::i32, {1, 59});
    call(45);
    call(45, documents.view());
    call(60);
    call(33);
    CHECK_THROWS_WITH(call(60, too_few.view()), doctest::Contains("documents: "));
    call(45, documents.view());
    call(60);
  });
  tests::rethrow_first(thrown);
  CHECK(world.agreements() == 2 * kRanks);  // two kinds, and of two ranks each tells the other
}

TEST_CASE("of several refusals ranks are told that of the lowest rank, and each its own") {
  const AttentionCase of = zigzag_case(Scheme::ring);
  const auto told = refusals({of,
                              [&](int rank) {
                                Options given = of.distributed_options();
                                if (rank % 2 == 1) given.attention.score = Score(rank == 1 ? "scroe" : "socre");
                                return given;
                              },
                              working_engine});
  for (const std::size_t rank : {0u, 2u})
    CHECK(message_of(told[rank], ErrorCode::compile_failed).find("rank 1: ") == 0);
  CHECK(message_of(told[1], ErrorCode::compile_failed).find("scroe") != std::string::npos);
  CHECK(message_of(told[3], ErrorCode::compile_failed).find("socre") != std::string::npos);
}

TEST_CASE("a message of another size than a rank waits for is an Error") {
  const AttentionCase of = zigzag_case(Scheme::ring);
  tests::World world(of.ranks, kTimeout);
  world.change_messages([](int, int, tests::World::Bytes& bytes) { bytes.resize(bytes.size() - 2); });
  const auto thrown = tests::on_ranks(world, [&](Group& group) { attend(group, of, of.distributed_options()); });
  for (const std::exception_ptr& error : thrown)
    CHECK(message_of(error, ErrorCode::communication) == "group: ranks disagree about the size of a message");
}

TEST_CASE("planted faults are found: lost and repeated messages, wrong offsets, a wrong merge") {
  for (const Scheme scheme : kSchemes) {
    const AttentionCase of = zigzag_case(scheme);
    CAPTURE(of.text());
    const auto is_found = [&](Engine& engine, const tests::World::OnTheWay& fault, const Options* told) {
      tests::World world(of.ranks, kTimeout);
      world.change_messages(fault);
      try {
        return !tests::is_right(tests::attention_over_shards(engine, world, of, told), of, engine);
      } catch (const Error&) {
        return true;
      }
    };
    Engine& engine = tests::engine_for("sm_80");
    CHECK_FALSE(is_found(engine, nullptr, nullptr));
    const auto lost = [count = 0](int from, int to, tests::World::Bytes& bytes) mutable {
      if (from == 0 && to == 1 && ++count == 1) std::fill(bytes.begin(), bytes.end(), 0);
    };
    CHECK(is_found(engine, lost, nullptr));
    const auto repeated = [last = tests::World::Bytes()](int from, int to, tests::World::Bytes& bytes) mutable {
      if (from != 0 || to != 1) return;
      std::swap(last, bytes);
      if (bytes.size() != last.size()) bytes = last;
    };
    CHECK(is_found(engine, repeated, nullptr));
    // Lengths are those of the truth, and all positions but a few are others.
    Options told = of.distributed_options();
    told.queries = Sharding(Layout::contiguous, 64, 4);
    told.keys = told.queries;
    CHECK(is_found(engine, nullptr, &told));
    Options shifted = of.distributed_options();
    shifted.attention.causal = false;
    shifted.attention.window = {-1, 1};
    CHECK(is_found(engine, nullptr, &shifted));
  }
  const tests::TemporaryDirectory directory;
  tests::plant("kernels/merge.cuh", "(lse - shift) * kLog2E", "(lse - shift)", directory / "templates");
  EngineOptions options = tests::emulating("sm_80");
  options.template_directory = (directory / "templates").string();
  Engine wrong_merge(options);
  tests::World world(4, kTimeout);
  const AttentionCase of = zigzag_case(Scheme::ring);
  CHECK_FALSE(tests::is_right(tests::attention_over_shards(wrong_merge, world, of), of, tests::engine_for("sm_80")));
}

namespace {

// Each option that the table of support names, set to something.
std::map<std::string, std::function<void(AttentionOptions&)>> setters(const HostTensor& anything) {
  const Tensor t = anything.view();
  using O = AttentionOptions;
  return {{"chunk", [](O& o) { o.chunk = 4; }},
          {"alibi_slopes", [=](O& o) { o.alibi_slopes = t; }},
          {"documents", [=](O& o) { o.documents = t; }},
          {"prefix", [=](O& o) { o.prefix = t; }},
          {"bias",
           [=](O& o) {
             o.bias = Tensor(t.data, DType::f32, {1, 1, 1, 1});
           }},
          {"boolean_mask", [=](O& o) { o.boolean_mask = t; }},
          {"tree", [=](O& o) { o.tree = t; }},
          {"score", [](O& o) { o.score = Score{"score"}; }},
          {"mask", [](O& o) { o.mask = Mask{"true"}; }},
          {"query_offsets", [=](O& o) { o.query_offsets = t; }},
          {"key_offsets", [=](O& o) { o.key_offsets = t; }},
          {"block_mask", [=](O& o) { o.block_mask = t; }},
          {"dropout", [](O& o) { o.dropout.probability = 0.1f; }},
          {"dropout_state", [=](O& o) { o.dropout_state = t; }},
          {"dropout_mask", [=](O& o) { o.dropout_mask = t; }},
          {"cu_seqlens_q", [=](O& o) { o.cu_seqlens_q = t; }},
          {"cu_seqlens_kv", [=](O& o) { o.cu_seqlens_kv = t; }},
          {"seqused_q", [=](O& o) { o.seqused_q = t; }},
          {"seqused_kv", [=](O& o) { o.seqused_kv = t; }},
          {"leftpad_kv", [=](O& o) { o.leftpad_kv = t; }},
          {"batch_indices_kv", [=](O& o) { o.batch_indices_kv = t; }},
          {"page_table", [=](O& o) { o.page_table = t; }},
          {"k_scale", [=](O& o) { o.k_scale = t; }},
          {"v_scale", [=](O& o) { o.v_scale = t; }},
          {"k_rotary", [=](O& o) { o.k_rotary = t; }},
          {"q_scale", [=](O& o) { o.q_scale = t; }},
          {"accumulate", [](O& o) { o.accumulate = Accumulate::fast; }},
          {"out_dtype", [](O& o) { o.out_dtype = DType::f16; }},
          {"out_scale", [=](O& o) { o.out_scale = t; }},
          {"max_seqlen_q", [](O& o) { o.max_seqlen_q = 4; }},
          {"max_seqlen_kv", [](O& o) { o.max_seqlen_kv = 4; }},
          {"fixed_split_size", [](O& o) { o.fixed_split_size = 64; }},
          {"plan", [](O& o) { o.plan = reinterpret_cast<const BatchPlan*>(&o); }},
          {"variant", [](O& o) { o.variant = parse_variant("mma-q64-kv64-w4"); }}};
}

constexpr Sizes kSizes{1, 8, 4, 16, 16, DType::bf16};

std::string refusal(const Options& options, ErrorCode code, const Sizes& sizes = kSizes) {
  std::string message;
  CHECK(tests::code_of(
            [&] {
              check(sizes, options);
              chosen_scheme(sizes, options);
            },
            &message) == code);
  return message;
}

}  // namespace

TEST_CASE("every option that a scheme does not serve is refused by name") {
  const HostTensor anything(DType::i32, {1});
  const auto set = setters(anything);
  CHECK(set.size() == option_supports().size());
  for (const OptionSupport& row : option_supports()) {
    CAPTURE(std::string(row.name));
    REQUIRE(set.count(row.name) == 1);
    for (const Scheme scheme : kSchemes)
      for (const bool is_packed : {false, true}) {
        CAPTURE(std::string(to_string(scheme)));
        CAPTURE(is_packed);
        AttentionCase of = zigzag_case(scheme);
        if (is_packed) of.cu_seqlens = {0, 20, 64};
        Options options = of.distributed_options();
        CHECK_FALSE(row.is_given(options.attention));
        set.at(row.name)(options.attention);
        CHECK(row.is_given(options.attention));
        const bool is_served =
            row.support == Support::whole_sequences ? scheme == Scheme::all_to_all && !(is_packed && row.has_batch)
            : row.support == Support::told_positions
                ? (scheme == Scheme::ring || scheme == Scheme::all_gather) && !(is_packed && row.has_batch)
                : false;
        if (is_served)
          CHECK(chosen_scheme(kSizes, options) == scheme);
        else
          CHECK(refusal(options, ErrorCode::unsupported).find(std::string(row.name) + ": must not be given ") == 0);
      }
  }
}

TEST_CASE("functions are refused where they cannot be told what they ask for") {
  Options options = zigzag_case(Scheme::ring).distributed_options();
  options.attention.mask = Mask("query + 3 > key");
  CHECK(chosen_scheme(kSizes, options) == Scheme::ring);
  options.attention.mask = Mask("query + seqlen_kv > key");
  CHECK(refusal(options, ErrorCode::unsupported) ==
        "score and mask: must not ask for seqlen_q and seqlen_kv, as calls have parts of sequences, did");
  options = zigzag_case(Scheme::ring).distributed_options();
  options.queries = Sharding(Layout::striped, 64, 4);
  options.keys = options.queries;
  options.attention.score = Score("score + key");
  CHECK(refusal(options, ErrorCode::unsupported) ==
        "score: must not be given with striped shards, of whose positions it cannot be told, was");
}

TEST_CASE("who leaves the choice of a scheme is told of what was asked for, and of no scheme") {
  const HostTensor anything(DType::i32, {1});
  const auto set = setters(anything);
  const auto given = [&](const std::vector<const char*>& names) {
    Options options = zigzag_case(Scheme::automatic).distributed_options();
    for (const char* name : names) set.at(name)(options.attention);
    return options;
  };
  CHECK(refusal(given({"prefix"}), ErrorCode::unsupported, {1, 6, 2, 16, 16, DType::bf16}) ==
        "num_heads_q: must be a multiple of the 4 ranks beside prefix, was 6");
  CHECK(refusal(given({"chunk"}), ErrorCode::unsupported, {1, 24, 6, 16, 16, DType::bf16}) ==
        "num_heads_kv: must divide the 4 ranks beside chunk, or be a multiple, was 6");
  CHECK(refusal(given({"chunk", "score"}), ErrorCode::unsupported) ==
        "score: must not be given beside chunk over several GPUs, was");
  Options striped = given({"mask"});
  striped.queries = Sharding(Layout::striped, 64, 4);
  striped.keys = striped.queries;
  CHECK(refusal(striped, ErrorCode::unsupported) ==
        "mask: must not be given with striped shards, of whose positions it cannot be told, was");
}

TEST_CASE("what is wrong is refused by name, before anything is sent") {
  const Options right = zigzag_case(Scheme::all_to_all).distributed_options();
  CHECK(refusal(right, ErrorCode::unsupported, {1, 6, 2, 16, 16, DType::bf16}) ==
        "num_heads_q: must be a multiple of the 4 ranks that share out heads by scheme all_to_all, was 6");
  CHECK(refusal(right, ErrorCode::unsupported, {1, 24, 6, 16, 16, DType::bf16}) ==
        "num_heads_kv: must divide the 4 ranks that share out heads by scheme all_to_all, or be a multiple, was 6");
  CHECK(refusal(right, ErrorCode::invalid_argument, {1, 7, 2, 16, 16, DType::bf16}) ==
        "num_heads_q: must be a multiple of num_heads_kv, 2, was 7");
  CHECK(refusal(right, ErrorCode::unsupported, {1, 8, 4, 16, 16, DType::e4m3}) ==
        "q: dtype must be f16 or bf16 over several GPUs, was e4m3");
  Options wrong = right;
  wrong.ranks_of_host = 3;
  CHECK(refusal(wrong, ErrorCode::invalid_argument) == "ranks_of_host: must be 0 or divide the 4 ranks, was 3");
  wrong = right;
  wrong.keys = Sharding(Layout::zigzag, 64, 2);
  CHECK(refusal(wrong, ErrorCode::invalid_argument) == "keys: must be of 4 ranks like the sharding of q, was of 2");
  wrong.keys = Sharding(Layout::striped, 64, 4);
  CHECK(refusal(wrong, ErrorCode::invalid_argument) ==
        "keys: layout must be zigzag like that of q beside a mask, was striped");
  wrong.attention.causal = false;
  CHECK(chosen_scheme(kSizes, wrong) == Scheme::all_to_all);
  wrong = right;
  wrong.machine.bytes = 0;
  CHECK(refusal(wrong, ErrorCode::invalid_argument)
            .find("machine: flops, backward_flops, bytes and bytes_across must be") == 0);
  wrong = right;
  wrong.machine.exchange = std::nan("");
  CHECK(refusal(wrong, ErrorCode::invalid_argument).find("machine: exchange and call must be 0 or more, were nan") ==
        0);
  CHECK(refusal(right, ErrorCode::invalid_argument, {1, 0, 4, 16, 16, DType::bf16}) ==
        "num_heads_q: must be a multiple of num_heads_kv, 4, was 0");
  CHECK(refusal(right, ErrorCode::invalid_argument, {1, 8, 0, 16, 16, DType::bf16}) ==
        "num_heads_kv: must be 1 or more, was 0");
  CHECK(refusal(right, ErrorCode::invalid_argument, {-1, 8, 4, 16, 16, DType::bf16}) ==
        "batch: must be 0 or more, was -1");
  wrong = right;
  wrong.attention.window = {-2, 0};
  CHECK(refusal(wrong, ErrorCode::invalid_argument).find("window") != std::string::npos);
  std::string message;
  CHECK(tests::code_of([] { parse_scheme("best"); }, &message) == ErrorCode::invalid_argument);
  CHECK(message == "scheme: must be automatic, all_gather, ring, all_to_all or two_level, was \"best\"");
  CHECK(parse_scheme("two_level") == Scheme::two_level);
}

TEST_CASE("tensors that are not what options say are refused by name, and the group goes on") {
  const AttentionCase of = zigzag_case(Scheme::ring);
  const Options options = of.distributed_options();
  const tests::WholeTensors whole(of);
  tests::World world(of.ranks, kTimeout);
  std::vector<std::vector<std::string>> found(4);
  tests::rethrow_first(tests::on_ranks(world, [&](Group& group) {
    const HostTensor q = shard(whole.q, options.queries, group.rank()), k = shard(whole.k, *options.keys, group.rank());
    Engine& engine = tests::engine_for("sm_80");
    const auto refused = [&](const Tensor& of_q, const Tensor& of_k, const Tensor& of_v, const Options& with) {
      try {
        attention(engine, group, of_q, of_k, of_v, with);
        found[static_cast<std::size_t>(group.rank())].push_back("none");
      } catch (const Error& error) {
        found[static_cast<std::size_t>(group.rank())].push_back(error.what());
      }
    };
    refused(whole.q.view(), k.view(), k.view(), options);
    refused(q.view(), whole.k.view(), k.view(), options);
    refused(q.view(), k.view(), Tensor(k.view().data, DType::f16, k.shape()), options);
    refused(Tensor(q.view().data, DType::bf16, {16, 8, 16}), k.view(), k.view(), options);
    Tensor shifted = k.view();
    shifted.data = static_cast<char*>(shifted.data) + 2;
    refused(q.view(), shifted, k.view(), options);
    HostTensor lse(DType::f32, {1, 8, 17});
    Options with = options;
    with.attention.lse = lse.view();
    refused(q.view(), k.view(), k.view(), with);
    with = options;
    with.attention.sinks = lse.view();
    refused(q.view(), k.view(), k.view(), with);
    with = options;
    with.queries = Sharding(Layout::zigzag, 64, 2);
    refused(q.view(), k.view(), k.view(), with);
    Tensor nowhere = k.view();
    nowhere.data = nullptr;
    refused(q.view(), nowhere, k.view(), options);
    with = options;
    with.attention.lse = Tensor(nullptr, DType::f32, {1, 8, 16});
    refused(q.view(), k.view(), k.view(), with);
    with = options;
    with.attention.sinks = Tensor(nullptr, DType::f32, {8});
    refused(q.view(), k.view(), k.view(), with);
    refused(q.view(), k.view(), k.view(), options);
  }));
  for (std::vector<std::string>& of_rank : found) {
    REQUIRE(of_rank.size() == 12);
    CHECK(of_rank[4].find("k: must be aligned to 16 bytes, was at ") == 0);
    of_rank.erase(of_rank.begin() + 4);
    CHECK(of_rank ==
          std::vector<std::string>{
              "q: shape must be [1, 16, 8, 16], was [1, 64, 8, 16]",
              "k: shape must be [1, 16, 4, 16], was [1, 64, 4, 16]", "v: dtype must be bf16, was f16",
              "q: must have 4 dimensions over several GPUs, had 3", "lse: shape must be [1, 8, 16], was [1, 8, 17]",
              "sinks: must be f32 [8] or [1, 8], contiguous, was f32 [1, 8, 17]",
              "queries: must be of 4 ranks like the group, was of 2", "k: must point to its elements, was null",
              "lse: must point to its elements, was null", "sinks: must point to its elements, was null", "none"});
  }
  CHECK(world.is_empty());
}

TEST_CASE("the rule takes what its model finds fastest, and only what can run") {
  Options options{Sharding(Layout::zigzag, 1 << 20, 8)};
  options.attention.causal = true;
  const Sizes sizes{1, 32, 8, 128, 128, DType::bf16};
  const std::vector<Estimate> long_context = estimates(sizes, options);
  CHECK(long_context.size() == 3);
  CHECK(chosen_scheme(sizes, options) == long_context.front().scheme);
  CHECK(std::is_sorted(long_context.begin(), long_context.end(),
                       [](const Estimate& a, const Estimate& b) { return a.seconds < b.seconds; }));
  // Half of all pairs, of 8 ranks, at the rate of kernels: no scheme is faster, and the fastest not by far slower.
  const double ideal = 4.0 * 128 * 32 * (1 << 20) * (1 << 20) / 2 / 8 / options.machine.flops;
  CHECK((long_context.front().seconds >= ideal && long_context.front().seconds < 1.02 * ideal));
  // Heads that cannot be shared out, then an option that only whole sequences serve, then both.
  Sizes few = sizes;
  few.num_heads_q = few.num_heads_kv = 4;
  for (const Estimate& estimate : estimates(few, options)) CHECK(estimate.scheme != Scheme::all_to_all);
  options.attention.chunk = 4096;
  CHECK(chosen_scheme(sizes, options) == Scheme::all_to_all);
  CHECK(refusal(options, ErrorCode::unsupported, few) ==
        "num_heads_q: must be a multiple of the 8 ranks beside chunk, was 4");
  // Hosts: what crosses slow links decides.
  options.attention.chunk = 0;
  options.ranks_of_host = 4;
  CHECK(estimates(sizes, options).size() == 4);
  CHECK(chosen_scheme(sizes, options) != Scheme::all_to_all);
}

TEST_CASE("the rule for gradients counts their products, what comes back in f32, and only schemes that have them") {
  Options options{Sharding(Layout::zigzag, 1 << 20, 8)};
  options.attention.causal = true;
  const Sizes sizes{1, 32, 8, 128, 128, DType::bf16};
  const auto of_scheme = [&](const std::vector<Estimate>& all, Scheme scheme) {
    for (const Estimate& estimate : all)
      if (estimate.scheme == scheme) return estimate;
    FAIL("the scheme is not there");
    return Estimate();
  };
  const std::vector<Estimate> gradients = gradient_estimates(sizes, options);
  CHECK(gradients.size() == 3);
  CHECK(chosen_scheme_of_gradients(sizes, options) == gradients.front().scheme);
  // Five products, of half of all pairs, of 8 ranks, at the rate of these kernels.
  const double ideal = 2.0 * 5 * 128 * 32 * (1 << 20) * (1 << 20) / 2 / 8 / options.machine.backward_flops;
  CHECK((gradients.front().seconds >= ideal && gradients.front().seconds < 1.02 * ideal));
  // Where all is gathered there are seven products. By a ring what is sent comes back, in twice as many bytes.
  CHECK(of_scheme(gradients, Scheme::all_gather).seconds > 1.3 * ideal);
  options.attention.causal = false;  // all ranks receive as much
  options.machine.bytes = 1e6;       // and that is all that takes time
  const Estimate forward = of_scheme(estimates(sizes, options), Scheme::ring),
                 backward = of_scheme(gradient_estimates(sizes, options), Scheme::ring);
  CHECK(backward.bytes == 3 * forward.bytes);
  CHECK((backward.seconds > 2.99 * forward.seconds && backward.seconds < 3.01 * forward.seconds));
  Sizes few = sizes;
  few.num_heads_kv = 4;  // of which attention may have more ranks than heads
  CHECK(estimates(few, options).size() == 3);
  CHECK(gradient_estimates(few, options).size() == 2);
  options.scheme = Scheme::all_to_all;
  std::string message;
  CHECK(tests::code_of([&] { chosen_scheme_of_gradients(few, options); }, &message) == ErrorCode::unsupported);
  CHECK(
      message ==
      "num_heads_kv: must be a multiple of the 8 ranks that share out heads for gradients by scheme all_to_all, was 4");
  options.machine.backward_flops = 0;
  CHECK(tests::code_of([&] { gradient_estimates(few, options); }, &message) == ErrorCode::invalid_argument);
  CHECK(message.find("machine: flops, backward_flops, bytes and bytes_across must be positive") == 0);
}
