// SPDX-License-Identifier: Apache-2.0
// Tensors of scores and masks, users' texts, and block masks. Texts are compared with options of the library that mean
// the same, by the reference that knows no texts, and with each other in verify's way.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/io/problem_options.h"
#include "cli/verify/cases.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/driver_calls.h"
#include "tests/support/error_code.h"
#include "tests/support/feature.h"
#include "tests/support/same_bytes.h"

using namespace flashjit;
using tests::AttentionCase;
using tests::same_bytes;
using tests::ScopedContext;
using tests::ScopedStream;
using tests::shared_engine;
using tests::Sizes;
using tests::test_device;

namespace {

// The default, and small blocks of each family that runs here, so that masks leave some whole and pass over others.
std::vector<std::optional<Variant>> ways() {
  std::vector<std::optional<Variant>> variants = {std::nullopt, parse_variant("mma-q64-kv32-k2-v2")};
  if (test_device().architecture == "sm_90a") variants.push_back(parse_variant("hopper-q64-kv32-qs2-whole-lazy-ppoff"));
  return variants;
}
std::string name_of(const std::optional<Variant>& way) { return way ? to_string(*way) : "default"; }

// All kernels that calls in these ways may take, in parallel.
void compile_ahead(const std::vector<Problem>& problems) {
  std::vector<std::pair<Problem, Variant>> kernels;
  for (const Problem& problem : problems) {
    for (const Variant& variant : shared_engine().default_variants(problem, test_device().architecture))
      kernels.emplace_back(problem, variant);
    for (const std::optional<Variant>& way : ways())
      if (way) kernels.emplace_back(problem, *way);
  }
  runtime::parallel_for(kernels.size(), [&](std::size_t i) {
    shared_engine().compile(kernels[i].first, kernels[i].second, test_device().architecture);
  });
}

DeviceTensor on_device(const HostTensor& tensor) { return tensor.to_device(nullptr, test_device().ordinal); }

HostTensor counting(DType dtype, const Dims& shape, const std::function<double(int)>& value) {
  HostTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.element_count(); ++i)
    store_element(tensor.data(), dtype, static_cast<std::int64_t>(i), value(static_cast<int>(i)));
  return tensor;
}
double small(int i) { return static_cast<double>(i % 13) / 8 - 0.75; }

// Output and LSE of the call, which must be those of the other options, whose tensors are in host memory.
void check_same(const AttentionCase& c, AttentionOptions asked, const AttentionOptions& meant) {
  const AttentionCase::Expected expected = c.expected(meant);
  compile_ahead({problem_of(c.q.dtype(), static_cast<int>(c.q.shape()[3]), static_cast<int>(c.v.shape()[3]), asked)});
  for (const std::optional<Variant>& way : ways()) {
    CAPTURE(name_of(way));
    const DeviceTensor out = c.poisoned_out(), lse = c.poisoned_lse();
    asked.variant = way;
    asked.lse = lse.view();
    shared_engine().attention(c.q, c.k, c.v, out, asked);
    expected.check_out(out);
    expected.check_lse(lse);
  }
}

// --- In verify's way -------------------------------------------------------------------------------------------------

// Asks for the features of these words.
Problem problem_with(const std::vector<std::string_view>& words, DType dtype, int head_dim) {
  Problem problem{.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim};
  for (const generator::FeatureRow& row : generator::features())
    if (std::find(words.begin(), words.end(), row.word) != words.end()) tests::ask(problem, row);
  return problem;
}

AttentionOptions options_of(const Problem& problem) {
  AttentionOptions options;
  if (problem.window) options.window = {90, -1};
  if (problem.softcap) options.softcap = 5;
  if (problem.score) options.score = tests::any_score();
  if (problem.mask) options.mask = tests::any_mask();
  return options;
}

// In every way, with a block mask, too, where it has predicates.
void verify(const Problem& problem, const std::vector<cli::CaseShape>& shapes) {
  for (const cli::CaseShape& shape : cli::shapes_for(problem, shapes)) {
    cli::VerifyCase c(problem, shape, test_device().ordinal, options_of(problem), cli::references_by(shared_engine()));
    for (const bool with_blocks : {false, true}) {
      if (with_blocks && !cli::has_predicate(problem)) continue;
      if (with_blocks) c.make_block_mask(shared_engine());
      for (const std::optional<Variant>& way : ways()) {
        CAPTURE(to_string(problem));
        CAPTURE(to_string(shape));
        CAPTURE(with_blocks);
        CAPTURE(name_of(way));
        CHECK(c.problem_with(shared_engine(), way) == "");
      }
    }
  }
}

void verify_all(const std::vector<Problem>& problems, const std::vector<cli::CaseShape>& shapes) {
  std::vector<Problem> with_blocks = problems;
  std::erase_if(with_blocks, [](const Problem& problem) { return !cli::has_predicate(problem); });
  for (Problem& problem : with_blocks) problem.block_mask = true;
  compile_ahead(problems);
  compile_ahead(with_blocks);
  for (const Problem& problem : problems) verify(problem, shapes);
}

const std::vector<cli::CaseShape>& shapes() {
  using cli::Scores;
  static const std::vector<cli::CaseShape> list = {{2, 130, 300, 4, 2},
                                                   {1, 257, 129, 8, 2},
                                                   {2, 1, 200, 8, 1},
                                                   {1, 300, 300, 2, 2, Scores::random, true},
                                                   {1, 130, 300, 2, 1, Scores::jumps},
                                                   {1, 130, 300, 2, 1, Scores::infinite}};
  return list;
}

}  // namespace

TEST_SUITE_BEGIN("sanitizer");

TEST_CASE("tensors of scores and masks, texts and block masks, in each family") {
  verify_all({problem_with({"bias", "boolean_mask", "documents", "score"}, DType::bf16, 64),
              problem_with({"prefix", "tree", "mask", "sinks", "alibi"}, DType::bf16, 64)},
             {{2, 40, 90, 4, 2}});
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("masks and scores");

TEST_CASE("each feature that reads a tensor or a text agrees with the reference, with and without a causal mask") {
  std::vector<Problem> problems;
  for (const char* word : {"bias", "boolean_mask", "documents", "prefix", "tree", "score", "mask"})
    for (const int head_dim : {64, 128}) {
      problems.push_back(problem_with({word}, DType::bf16, head_dim));
      problems.push_back(problem_with({word}, DType::bf16, head_dim));
      problems.back().causal = !problems.back().prefix;  // which stands in place of it
    }
  verify_all(problems, shapes());
}

TEST_CASE("biases of every dtype agree with the reference, in both dtypes and for odd head dims") {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const DType of_bias : {DType::f16, DType::bf16, DType::f32}) {
      AttentionOptions options;
      options.bias = Tensor(nullptr, of_bias, {});
      problems.push_back(problem_of(dtype, 40, 72, options));
    }
  verify_all(problems, shapes());
}

TEST_CASE("features together agree with the reference") {
  verify_all({problem_with({"causal", "window", "softcap", "bias", "score"}, DType::f16, 128),
              problem_with({"causal", "documents", "boolean_mask", "mask"}, DType::f16, 128),
              problem_with({"alibi", "sinks", "documents", "score"}, DType::f16, 128),
              problem_with({"prefix", "tree", "bias", "mask"}, DType::f16, 128)},
             shapes());
}

// --- Texts beside what means the same --------------------------------------------------------------------------------

TEST_CASE("texts that are written as options of the library compute what these compute") {
  const AttentionCase c(Sizes{2, 130, 210, 4, 2, 64, 64});
  const HostTensor slopes = counting(DType::f32, {4}, [](int head) { return 0.0625 * (head + 1); });
  const HostTensor bias = HostTensor::random_normal(DType::bf16, {2, 1, 130, 210}, 5);
  const HostTensor documents = counting(DType::i32, {2, 210}, [](int i) { return i % 210 / (i < 210 ? 70 : 33); });
  const DeviceTensor slopes_there = on_device(slopes), bias_there = on_device(bias), ids_there = on_device(documents);
  AttentionOptions text, option;
  SUBCASE("ALiBi") {
    text.score = Score("score - slope(head) * abs(query + (seqlen_kv - seqlen_q) - key)", {{"slope", slopes_there}});
    option.alibi_slopes = slopes.view();
  }
  SUBCASE("slopes along the keys, under a causal mask") {
    text.score = Score("score - slope(head) * (query + (seqlen_kv - seqlen_q) - key)", {{"slope", slopes_there}});
    option.alibi_slopes = slopes.view();
    text.causal = option.causal = true;
  }
  SUBCASE("softcap") {
    text.score = Score("cap * tanh(score / cap)", {{"cap", 1.5}});
    option.softcap = 1.5f;
  }
  SUBCASE("softcap, as a body") {
    text.score = Score("const auto inside = score / cap;\nreturn cap * tanh(inside);", {{"cap", 1.5}});
    option.softcap = 1.5f;
  }
  SUBCASE("bias") {
    text.score = Score("score + bias(batch, 0, query, key)", {{"bias", bias_there}});
    option.bias = bias.view();
  }
  SUBCASE("causal mask") {
    text.mask = Mask("key <= query + seqlen_kv - seqlen_q");
    option.causal = true;
  }
  SUBCASE("window, as a body") {
    text.mask = Mask("const int own = query + seqlen_kv - seqlen_q;\nreturn own - key <= left && key - own <= right;",
                     {{"left", 40}, {"right", 9}});
    option.window = {40, 9};
  }
  SUBCASE("documents") {
    text.mask = Mask("id(batch, query + seqlen_kv - seqlen_q) == id(batch, key)", {{"id", ids_there}});
    option.documents = documents.view();
  }
  SUBCASE("a score and a mask") {
    text.score = Score("score + bias(batch, 0, query, key)", {{"bias", bias_there}});
    text.mask = Mask("id(batch, query + seqlen_kv - seqlen_q) == id(batch, key)", {{"id", ids_there}});
    option.bias = bias.view();
    option.documents = documents.view();
  }
  check_same(c, text, option);
  if (!text.mask) return;
  const DeviceTensor blocks = shared_engine().block_mask(text, {2, 130, 210, 4, 2});
  text.block_mask = blocks.view();
  check_same(c, text, option);
}

TEST_CASE("captures of every dtype, packed and apart, have their values") {
  const AttentionCase c(Sizes{2, 100, 150, 4, 2, 64, 64});
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::i32, DType::i64, DType::boolean}) {
    CAPTURE(std::string(to_string(dtype)));
    const bool is_whole = dtype == DType::i32 || dtype == DType::i64;
    const HostTensor values = counting(dtype, {4, 2 * 150}, [&](int i) {
      return dtype == DType::boolean ? i % 3 == 0 : is_whole ? i % 5 - 2 : small(i);
    });
    const DeviceTensor memory = on_device(values);
    for (const std::int64_t apart : {1, 2}) {
      CAPTURE(apart);
      AttentionOptions text, option;
      const Tensor view(memory.data(), dtype, {4, 150}, {2 * 150, apart});
      text.score = Score("score + float(value(head, key))", {{"value", view}});
      const HostTensor bias = counting(DType::f32, {1, 4, 1, 150}, [&](int i) {
        return load_element(values.data(), dtype, i / 150 * 300 + i % 150 * apart);
      });
      option.bias = bias.view();
      check_same(c, text, option);
    }
  }
}

TEST_CASE("offsets of each batch entry are where positions begin") {
  const AttentionCase c(Sizes{2, 100, 260, 2, 1, 64, 64});
  const HostTensor slopes = counting(DType::f32, {2}, [](int) { return 0.125; });
  // Different ones, of which only the distance counts: that by which ALiBi is aligned.
  const DeviceTensor query_offsets = on_device(counting(DType::i32, {2}, [](int b) { return b == 0 ? 1160 : -40; }));
  const DeviceTensor key_offsets = on_device(counting(DType::i32, {2}, [](int b) { return b == 0 ? 1000 : -200; }));
  AttentionOptions text, option;
  text.score = Score("score - 0.125f * abs(query - key)");
  text.mask = Mask("key <= query");
  text.query_offsets = query_offsets.view();
  text.key_offsets = key_offsets.view();
  option.alibi_slopes = slopes.view();
  option.causal = true;
  check_same(c, text, option);
  const DeviceTensor blocks = shared_engine().block_mask(text, {2, 100, 260, 1, 1});
  text.block_mask = blocks.view();
  check_same(c, text, option);
}

TEST_CASE("new numbers, tensors and lengths compile nothing") {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  Engine engine(options);
  AttentionOptions text, option;
  text.variant = parse_variant("mma-q64-kv32-k2-v2");
  std::uint64_t compiles = 0;
  for (const std::int64_t keys : {77, 200}) {
    const AttentionCase c(Sizes{2, 33, keys, 4, 2, 64, 64});
    const HostTensor bias = HostTensor::random_normal(DType::f32, {1, 1, 1, keys}, static_cast<std::uint64_t>(keys));
    const DeviceTensor there = on_device(bias);
    const Tensor values(there.data(), DType::f32, {keys});
    for (const int first : {0, 20}) {
      text.score = Score("score + values(key)", {{"values", values}});
      text.mask = Mask("key >= first", {{"first", first}});
      const HostTensor shown =
          counting(DType::boolean, {1, 1, 1, keys}, [&](int key) { return static_cast<double>(key >= first); });
      option.bias = bias.view();
      option.boolean_mask = shown.view();
      const DeviceTensor out = c.poisoned_out();
      engine.attention(c.q, c.k, c.v, out, text);
      c.check_out(out, option);
      if (compiles == 0) compiles = engine.counters().compiles;
      CHECK(engine.counters().compiles == compiles);
    }
  }
}

// --- Block masks -----------------------------------------------------------------------------------------------------

TEST_CASE("a block mask has bit by bit what the emulator makes, and none of what was in its memory") {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::off;
  options.emulate = "sm_80";
  Engine emulator(options);
  const HostTensor documents = counting(DType::i32, {2, 540}, [](int i) { return i % 540 / (i < 540 ? 170 : 77); });
  const HostTensor shown =
      counting(DType::boolean, {1, 2, 150, 540}, [](int i) { return i % 540 / 64 % 2 == 0 || i % 1621 == 5; });
  const HostTensor tree = HostTensor::random_normal(DType::f32, {1, 150, 6}, 3);  // any bits
  const Tensor bits(tree.view().data, DType::i64, {1, 150, 3});
  const DeviceTensor documents_there = on_device(documents), shown_there = on_device(shown),
                     tree_there = on_device(tree);
  AttentionOptions here, there;
  CallShape shape{2, 150, 540, 2, 1};
  SUBCASE("documents, for all heads") {
    here.documents = documents.view(), there.documents = documents_there.view();
    shape.num_heads_q = 1;
  }
  SUBCASE("boolean mask, for all batch entries") {
    here.boolean_mask = shown.view(), there.boolean_mask = shown_there.view();
    shape.batch = 1;
  }
  SUBCASE("tree, for all") {
    here.tree = bits, there.tree = Tensor(tree_there.data(), DType::i64, {1, 150, 3});
    shape.batch = shape.num_heads_q = 1;
  }
  SUBCASE("text") { here.mask = there.mask = Mask("(key / 50 + head + batch) % 3 == 0 || abs(query - key) < 90"); }
  SUBCASE("all together") {
    here.documents = documents.view(), there.documents = documents_there.view();
    here.boolean_mask = shown.view(), there.boolean_mask = shown_there.view();
    here.tree = bits, there.tree = Tensor(tree_there.data(), DType::i64, {1, 150, 3});
    here.mask = there.mask = Mask("key < 512 || query % 2 == 0");
  }
  const DeviceTensor wanted = emulator.block_mask(here, shape);
  const DeviceTensor got = on_device(counting(DType::i32, block_mask_dims(shape), [](int) { return -1; }));
  shared_engine().block_mask(there, shape, got);
  CHECK(same_bytes(HostTensor::from_device(got), HostTensor::from_device(wanted)));
}

TEST_CASE("one memory serves block masks of growing lengths, and one block mask the calls of all layers") {
  const std::int64_t longest = 700;
  const DeviceTensor memory =
      on_device(counting(DType::i32, block_mask_dims({1, longest, longest, 1, 1}), [](int) { return 0x55555555; }));
  AttentionOptions text, option;
  text.mask = Mask("(key / 70 + query / 70) % 3 != 1");
  for (const std::int64_t length : {60, 333, 700}) {
    CAPTURE(length);
    const CallShape shape{1, length, length, 1, 1};
    const Tensor blocks(memory.data(), DType::i32, block_mask_dims(shape));
    text.block_mask.reset();
    shared_engine().block_mask(text, shape, blocks);
    text.block_mask = blocks;
    const HostTensor shown = counting(DType::boolean, {1, 1, length, length}, [&](int i) {
      return static_cast<double>((i % length / 70 + i / length / 70) % 3 != 1);
    });
    option.boolean_mask = shown.view();
    for (const Sizes& layer : {Sizes{1, length, length, 2, 2, 64, 64}, Sizes{2, length, length, 4, 1, 128, 128}})
      check_same(AttentionCase(layer, DType::f16, static_cast<std::uint64_t>(layer.head_dim)), text, option);
  }
}

// --- Streams, graphs and errors --------------------------------------------------------------------------------------

namespace {

// Documents in device memory, and a call that goes by them.
struct Packed {
  Packed() : c(Sizes{1, 500, 500, 2, 2, 64, 64}), ids(on_device(of_length(100))) {
    options.documents = ids.view();
    blocks = on_device(counting(DType::i32, block_mask_dims(shape), [](int) { return -1; }));
    out = c.poisoned_out();
  }
  static HostTensor of_length(int length) {
    return counting(DType::i32, {1, 500}, [=](int i) { return static_cast<double>(i / length); });
  }
  // Both on the stream, and nothing is waited for.
  void enqueue(Stream stream) {
    AttentionOptions with_blocks = options;
    with_blocks.stream = stream;
    shared_engine().block_mask(with_blocks, shape, blocks);
    with_blocks.block_mask = blocks.view();
    shared_engine().attention(c.q, c.k, c.v, out, with_blocks);
  }
  void check(int length) const {
    const HostTensor documents = of_length(length);
    AttentionOptions meant;
    meant.documents = documents.view();
    c.check_out(out, meant);
  }

  AttentionCase c;
  CallShape shape{1, 500, 500, 1, 1};
  AttentionOptions options;
  DeviceTensor ids, blocks, out;
};

void copy_later(const HostTensor& from, const DeviceTensor& to, CUstream stream) {
  DRIVER_CALL(cuMemcpyHtoDAsync, reinterpret_cast<CUdeviceptr>(to.data()), from.data(), to.size_bytes(), stream);
}

}  // namespace

TEST_CASE("a block mask is made on a stream, and used there by the next call") {
  Packed packed;
  const ScopedContext context(0);
  const ScopedStream stream;
  DRIVER_CALL(cuCtxSynchronize);
  for (const int length : {100, 170, 33}) {
    const HostTensor ids = Packed::of_length(length);
    copy_later(ids, packed.ids, stream.get());
    packed.enqueue(stream.get());
    stream.synchronize();
    packed.check(length);
  }
  AttentionOptions of_its_own = packed.options;
  of_its_own.stream = stream.get();
  const DeviceTensor blocks = shared_engine().block_mask(of_its_own, packed.shape);
  CHECK(blocks.stream() == stream.get());
  CHECK(same_bytes(HostTensor::from_device(blocks), HostTensor::from_device(packed.blocks)));
}

TEST_CASE("a graph makes its block mask anew each time it runs") {
  Packed packed;
  const ScopedContext context(0);
  const ScopedStream stream;
  DRIVER_CALL(cuCtxSynchronize);
  packed.enqueue(stream.get());  // makes both kernels
  stream.synchronize();
  DRIVER_CALL(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  packed.enqueue(stream.get());
  CUgraph graph = nullptr;
  DRIVER_CALL(cuStreamEndCapture, stream.get(), &graph);
  CUgraphExec executable = nullptr;
  DRIVER_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  for (const int length : {60, 210}) {
    const HostTensor ids = Packed::of_length(length);
    copy_later(ids, packed.ids, stream.get());
    DRIVER_CALL(cuGraphLaunch, executable, stream.get());
    stream.synchronize();
    packed.check(length);
  }
  DRIVER_CALL(cuGraphExecDestroy, executable);
  DRIVER_CALL(cuGraphDestroy, graph);
}

TEST_CASE("what is wrong with a text or its captures is told, and the next call is right") {
  const AttentionCase c;
  const auto refusal = [&](const AttentionOptions& options, ErrorCode expected) {
    std::string message;
    CHECK(tests::code_of([&] { shared_engine().attention(c.q, c.k, c.v, options); }, &message) == expected);
    c.check_out(shared_engine().attention(c.q, c.k, c.v));
    return message;
  };
  AttentionOptions options;
  options.score = Score("score +\n  nothing");
  CHECK(refusal(options, ErrorCode::compile_failed).find("score: line 2, column 3") != std::string::npos);
  options.score.reset();
  options.mask = Mask("here(key)");
  CHECK(refusal(options, ErrorCode::compile_failed).find("mask: line 1, column 1") != std::string::npos);
  std::string message;
  CHECK(tests::code_of(
            [&] {
              shared_engine().block_mask(options, {2, 33, 77, 4, 2});
            },
            &message) == ErrorCode::compile_failed);
  CHECK(message.find("mask: line 1, column 1") != std::string::npos);
  const HostTensor slopes(DType::f32, {4});
  options.mask.reset();
  options.score = Score("score - slope(head)", {{"slope", slopes.view()}});
  const std::string host = refusal(options, ErrorCode::invalid_argument);
  CHECK(host.find("slope") != std::string::npos);
  CHECK(host.find("must be device memory") != std::string::npos);
  options.score.reset();
  const HostTensor shown(DType::boolean, {1, 1, 1, 77});
  options.boolean_mask = shown.view();
  CHECK(refusal(options, ErrorCode::invalid_argument).starts_with("boolean_mask: must be device memory"));
}

TEST_SUITE_END();
