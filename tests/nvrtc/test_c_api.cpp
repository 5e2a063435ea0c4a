// SPDX-License-Identifier: Apache-2.0
// Attention through the C interface, in the emulator.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashjit.h"
#include "flashjit/engine.h"
#include "tests/support/dlpack_view.h"
#include "tests/support/kept_kernels.h"
#include "tests/support/ragged_batch.h"
#include "tests/support/same_bytes.h"

namespace {

using namespace flashjit;
using tests::DlpackView;
using tests::same_bytes;

EngineOptions emulating() {
  EngineOptions options = tests::options_with_kept_kernels();
  options.emulate = "sm_90a";
  return options;
}

flashjit_engine* make_engine(const char* emulate = "sm_90a") {
  flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
  options.policy = "compile";
  options.cache_directory = FLASHJIT_KEPT_KERNELS;
  options.emulate = emulate;
  flashjit_engine* engine = nullptr;
  REQUIRE(flashjit_engine_create(&options, &engine) == FLASHJIT_OK);
  return engine;
}

// As tests::kernels_of.
std::uint64_t kernels_of(const flashjit_counters& counters) { return counters.compiles + counters.disk_hits; }

}  // namespace

TEST_CASE("a call through C computes what a call in C++ does, with its options") {
  const HostTensor q = HostTensor::random_normal(DType::f16, {1, 17, 2, 64}, 1),
                   k = HostTensor::random_normal(DType::f16, {1, 33, 1, 64}, 2),
                   v = HostTensor::random_normal(DType::f16, {1, 33, 1, 64}, 3),
                   slopes = HostTensor::random_normal(DType::f32, {1, 2}, 4),
                   sinks = HostTensor::random_normal(DType::f32, {2}, 5);
  const Dims out_shape{1, 17, 2, 64}, lse_shape{1, 2, 17};
  HostTensor expected(DType::f16, out_shape), out(DType::f16, out_shape), expected_lse(DType::f32, lse_shape),
      lse(DType::f32, lse_shape);
  AttentionOptions opts;
  opts.causal = true;
  opts.window = {6, -1};
  opts.chunk = 12;
  opts.softcap = 2;
  opts.alibi_slopes = slopes.view();
  opts.sinks = sinks.view();
  opts.softmax_scale = 0.25f;
  opts.lse = expected_lse.view();
  opts.variant = parse_variant("v3");
  Engine(emulating()).attention(q.view(), k.view(), v.view(), expected.view(), opts);

  DlpackView c_q(q.view(), kDLCPU), c_k(k.view(), kDLCPU), c_v(v.view(), kDLCPU), c_out(out.view(), kDLCPU),
      c_lse(lse.view(), kDLCPU), c_slopes(slopes.view(), kDLCPU), c_sinks(sinks.view(), kDLCPU);
  constexpr std::size_t kOffset = 4096;
  c_q.data = static_cast<char*>(c_q.data) - kOffset;
  c_q.byte_offset = kOffset;
  c_v.strides = c_lse.strides = nullptr;
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  const flashjit_window window = {6, -1};
  options.window = &window;
  options.chunk = 12;
  options.softcap = 2;
  options.alibi_slopes = &c_slopes;
  options.sinks = &c_sinks;
  options.has_softmax_scale = 1;
  options.softmax_scale = 0.25f;
  options.lse = &c_lse;
  options.variant = "v3";
  flashjit_engine* const engine = make_engine();
  CHECK(flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options) == FLASHJIT_OK);
  CHECK(std::string(flashjit_last_error()).empty());
  CHECK(same_bytes(out, expected));
  CHECK(same_bytes(lse, expected_lse));

  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &counters) == FLASHJIT_OK);
  CHECK(kernels_of(counters) == 1);
  flashjit_engine_destroy(engine);
}

namespace {

// Inputs, and what the same call gives in both languages.
struct BothCalls {
  HostTensor q = HostTensor::random_normal(DType::f16, {2, 17, 2, 64}, 1),
             k = HostTensor::random_normal(DType::f16, {2, 33, 1, 64}, 2),
             v = HostTensor::random_normal(DType::f16, {2, 33, 1, 64}, 3);
  HostTensor expected{DType::f16, {2, 17, 2, 64}}, out{DType::f16, {2, 17, 2, 64}};
  AttentionOptions opts;
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;

  bool same() {
    EngineOptions engine_options = emulating();
    engine_options.emulate = "sm_80";
    Engine(engine_options).attention(q.view(), k.view(), v.view(), expected.view(), opts);
    const DlpackView c_q(q.view(), kDLCPU), c_k(k.view(), kDLCPU), c_v(v.view(), kDLCPU), c_out(out.view(), kDLCPU);
    flashjit_engine* const engine = make_engine("sm_80");
    const flashjit_status status = flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options);
    CHECK_MESSAGE(status == FLASHJIT_OK, flashjit_last_error());
    flashjit_engine_destroy(engine);
    return same_bytes(out, expected);
  }
};

// Elements 0, 1, ... modulo a number.
HostTensor counting(DType dtype, const Dims& shape, int modulus) {
  HostTensor tensor(dtype, shape);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(tensor.element_count()); ++i)
    store_element(tensor.data(), dtype, i, static_cast<double>(i % modulus));
  return tensor;
}

}  // namespace

TEST_CASE("tensors of scores and masks mean through C what they do in C++") {
  struct Case {
    std::optional<Tensor> AttentionOptions::*option;
    const DLTensor* flashjit_attention_options::*field;
    HostTensor tensor;
  };
  const Case cases[] = {
      {&AttentionOptions::bias, &flashjit_attention_options::bias, counting(DType::bf16, {2, 1, 17, 33}, 5)},
      {&AttentionOptions::boolean_mask, &flashjit_attention_options::boolean_mask,
       counting(DType::boolean, {1, 2, 17, 33}, 3)},
      {&AttentionOptions::documents, &flashjit_attention_options::documents, counting(DType::i32, {2, 33}, 4)},
      {&AttentionOptions::prefix, &flashjit_attention_options::prefix, counting(DType::i32, {2}, 7)},
      {&AttentionOptions::tree, &flashjit_attention_options::tree, counting(DType::i64, {1, 17, 1}, 11)}};
  HostTensor plain(DType::f16, {2, 17, 2, 64});
  for (int i = -1; i < static_cast<int>(std::size(cases)); ++i) {
    CAPTURE(i);
    BothCalls calls;
    if (i < 0) {
      CHECK(calls.same());
      plain = calls.out;
      continue;
    }
    const DlpackView view(cases[i].tensor.view(), kDLCPU);
    calls.opts.*cases[i].option = cases[i].tensor.view();
    calls.options.*cases[i].field = &view;
    CHECK(calls.same());
    CHECK_FALSE(same_bytes(calls.out, plain));
  }
}

namespace {

const DLTensor* flashjit_attention_options::*field_of(std::optional<Tensor> AttentionOptions::*option) {
  constexpr std::pair<std::optional<Tensor> AttentionOptions::*, const DLTensor * flashjit_attention_options::*>
      kFields[] = {{&AttentionOptions::cu_seqlens_q, &flashjit_attention_options::cu_seqlens_q},
                   {&AttentionOptions::cu_seqlens_kv, &flashjit_attention_options::cu_seqlens_kv},
                   {&AttentionOptions::seqused_q, &flashjit_attention_options::seqused_q},
                   {&AttentionOptions::seqused_kv, &flashjit_attention_options::seqused_kv},
                   {&AttentionOptions::leftpad_kv, &flashjit_attention_options::leftpad_kv},
                   {&AttentionOptions::batch_indices_kv, &flashjit_attention_options::batch_indices_kv},
                   {&AttentionOptions::page_table, &flashjit_attention_options::page_table}};
  for (const auto& [of_cpp, of_c] : kFields)
    if (of_cpp == option) return of_c;
  return nullptr;
}

}  // namespace

TEST_CASE("ragged batches mean through C what they do in C++") {
  Engine in_cpp(emulating());
  flashjit_engine* const engine = make_engine();
  bool was_given[7] = {};
  // Which give every field.
  constexpr std::pair<std::uint64_t, std::int64_t> kSeedsAndPageSizes[] = {
      {0, 0}, {2, 0}, {4, 0}, {6, 0}, {11, 0}, {17, 0}, {18, 0}, {21, 0}, {0, 16}, {1, 24}, {2, 5}};
  for (const auto& [seed, page_size] : kSeedsAndPageSizes) {
    CAPTURE(seed);
    CAPTURE(page_size);
    const tests::RaggedBatch batch(seed, {.page_size = page_size});
    HostTensor expected(DType::bf16, batch.out_shape()), out(DType::bf16, batch.out_shape()),
        expected_lse(DType::f32, batch.lse_shape()), lse(DType::f32, batch.lse_shape());
    AttentionOptions opts = batch.options;
    opts.max_seqlen_q = opts.max_seqlen_kv = 200;
    opts.lse = expected_lse.view();
    in_cpp.attention(batch.q().view(), batch.k(), batch.v(), expected.view(), opts);

    const DlpackView q(batch.q().view(), kDLCPU), k(batch.k(), kDLCPU), v(batch.v(), kDLCPU), c_out(out.view(), kDLCPU),
        c_lse(lse.view(), kDLCPU);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    const flashjit_window window = {opts.window.left, opts.window.right};
    options.causal = opts.causal;
    options.window = &window;
    options.lse = &c_lse;
    options.max_seqlen_q = options.max_seqlen_kv = 200;
    std::list<DlpackView> views;
    for (const auto& [option, tensor] : batch.int_tensors())
      options.*field_of(option) = &views.emplace_back(tensor.view(), kDLCPU);
    CHECK_MESSAGE(flashjit_attention(engine, &q, &k, &v, &c_out, &options) == FLASHJIT_OK, flashjit_last_error());
    CHECK(same_bytes(out, expected));
    CHECK(same_bytes(lse, expected_lse));
    const DLTensor* const given[] = {options.cu_seqlens_q, options.cu_seqlens_kv, options.seqused_q,
                                     options.seqused_kv,   options.leftpad_kv,    options.batch_indices_kv,
                                     options.page_table};
    for (std::size_t i = 0; i < std::size(given); ++i) was_given[i] |= given[i] != nullptr;
  }
  for (const bool was : was_given) CHECK(was);
  flashjit_engine_destroy(engine);
}

TEST_CASE("a packed batch through C is what its sequences are one by one") {
  const std::int32_t of_queries[] = {0, 5, 5, 22}, of_keys[] = {0, 9, 13, 46};
  const Dims shape_q{22, 2, 64}, shape_kv{46, 1, 64}, shape_lse{2, 22};
  const HostTensor q = HostTensor::random_normal(DType::f16, shape_q, 1),
                   k = HostTensor::random_normal(DType::f16, shape_kv, 2),
                   v = HostTensor::random_normal(DType::f16, shape_kv, 3);
  HostTensor out(DType::f16, shape_q), lse(DType::f32, shape_lse), offsets_q(DType::i32, {4}),
      offsets_kv(DType::i32, {4}), wanted(DType::f16, shape_q), wanted_lse(DType::f32, shape_lse);
  std::memcpy(offsets_q.data(), of_queries, sizeof of_queries);
  std::memcpy(offsets_kv.data(), of_keys, sizeof of_keys);
  flashjit_engine* const engine = make_engine();
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1;
  options.variant = "v3";
  {
    const DlpackView c_q(q.view(), kDLCPU), c_k(k.view(), kDLCPU), c_v(v.view(), kDLCPU), c_out(out.view(), kDLCPU),
        c_lse(lse.view(), kDLCPU), c_offsets_q(offsets_q.view(), kDLCPU), c_offsets_kv(offsets_kv.view(), kDLCPU);
    options.cu_seqlens_q = &c_offsets_q;
    options.cu_seqlens_kv = &c_offsets_kv;
    options.lse = &c_lse;
    CHECK_MESSAGE(flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options) == FLASHJIT_OK, flashjit_last_error());
    options.cu_seqlens_q = options.cu_seqlens_kv = nullptr;
  }
  const auto rows_of = [](const HostTensor& tensor, std::int64_t heads, std::int64_t first, std::int64_t end) {
    char* const data = static_cast<char*>(tensor.view().data);
    return Tensor(data + first * heads * 64 * size_of(DType::f16), DType::f16, {1, end - first, heads, 64});
  };
  for (int i = 0; i < 3; ++i) {
    const std::int64_t first = of_queries[i], end = of_queries[i + 1];
    const DlpackView c_q(rows_of(q, 2, first, end), kDLCPU), c_out(rows_of(wanted, 2, first, end), kDLCPU),
        c_k(rows_of(k, 1, of_keys[i], of_keys[i + 1]), kDLCPU), c_v(rows_of(v, 1, of_keys[i], of_keys[i + 1]), kDLCPU);
    float* const sums = static_cast<float*>(wanted_lse.data()) + first;
    const DlpackView c_lse(Tensor(sums, DType::f32, {1, 2, end - first}, {44, 22, 1}), kDLCPU);
    options.lse = &c_lse;
    CHECK_MESSAGE(flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options) == FLASHJIT_OK, flashjit_last_error());
  }
  CHECK(same_bytes(out, wanted));
  CHECK(same_bytes(lse, wanted_lse));
  flashjit_engine_destroy(engine);
}

namespace {

// A ragged batch for both languages, and a plan for it in C.
struct PlannedBatch {
  HostTensor q = HostTensor::random_normal(DType::f16, {22, 2, 64}, 1),
             k = HostTensor::random_normal(DType::f16, {46, 1, 64}, 2),
             v = HostTensor::random_normal(DType::f16, {46, 1, 64}, 3), out{DType::f16, {22, 2, 64}},
             expected{DType::f16, {22, 2, 64}}, of_queries{DType::i32, {4}}, of_keys{DType::i32, {4}};
  DlpackView c_q{q.view(), kDLCPU}, c_k{k.view(), kDLCPU}, c_v{v.view(), kDLCPU}, c_out{out.view(), kDLCPU},
      c_of_queries{of_queries.view(), kDLCPU}, c_of_keys{of_keys.view(), kDLCPU};
  Engine in_cpp{emulating()};
  flashjit_engine* engine = make_engine();
  AttentionOptions opts;
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  flashjit_plan* plan = nullptr;

  PlannedBatch() {
    set({0, 5, 5, 22}, {0, 9, 13, 46});
    opts.causal = true, options.causal = 1;
    opts.cu_seqlens_q = of_queries.view(), options.cu_seqlens_q = &c_of_queries;
    opts.cu_seqlens_kv = of_keys.view(), options.cu_seqlens_kv = &c_of_keys;
  }
  ~PlannedBatch() {
    flashjit_plan_destroy(plan);
    flashjit_engine_destroy(engine);
  }
  PlannedBatch(const PlannedBatch&) = delete;
  PlannedBatch& operator=(const PlannedBatch&) = delete;

  void set(const std::vector<std::int32_t>& queries, const std::vector<std::int32_t>& keys) const {
    std::memcpy(of_queries.view().data, queries.data(), 4 * sizeof(std::int32_t));
    std::memcpy(of_keys.view().data, keys.data(), 4 * sizeof(std::int32_t));
  }
  std::int64_t words() const {
    std::int64_t words = 0;
    CHECK_MESSAGE(flashjit_plan_words(engine, &c_q, &c_k, &c_v, &options, &words) == FLASHJIT_OK,
                  flashjit_last_error());
    return words;
  }
  flashjit_status create(const DLTensor* memory) {
    return flashjit_plan_create(engine, &c_q, &c_k, &c_v, &options, memory, &plan);
  }
  flashjit_status update() { return flashjit_plan_update(engine, plan, &c_q, &c_k, &c_v, &options); }
  flashjit_status run() {
    options.plan = plan;
    const flashjit_status status = flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options);
    options.plan = nullptr;
    return status;
  }
  // As the call in C++ with a plan of what the lengths are now.
  bool same() {
    const BatchPlan of_cpp = in_cpp.plan(q.view(), k.view(), v.view(), opts);
    opts.plan = &of_cpp;
    in_cpp.attention(q.view(), k.view(), v.view(), expected.view(), opts);
    opts.plan = nullptr;
    CHECK_MESSAGE(run() == FLASHJIT_OK, flashjit_last_error());
    return same_bytes(out, expected);
  }
};

}  // namespace

TEST_CASE("a plan through C serves calls as in C++, and is made anew in place") {
  for (const bool own_memory : {true, false}) {
    CAPTURE(own_memory);
    PlannedBatch batch;
    const HostTensor memory(DType::i32, {batch.words()});
    const DlpackView view(memory.view(), kDLCPU);
    REQUIRE_MESSAGE(batch.create(own_memory ? nullptr : &view) == FLASHJIT_OK, flashjit_last_error());
    CHECK(batch.same());
    batch.set({0, 17, 20, 22}, {0, 30, 31, 46});
    CHECK_FALSE(batch.same());  // it has what the lengths were
    REQUIRE_MESSAGE(batch.update() == FLASHJIT_OK, flashjit_last_error());
    CHECK(batch.same());

    flashjit_counters before = FLASHJIT_COUNTERS_INIT, after = FLASHJIT_COUNTERS_INIT;
    CHECK(flashjit_get_counters(batch.engine, &before) == FLASHJIT_OK);
    CHECK(batch.run() == FLASHJIT_OK);
    CHECK(flashjit_get_counters(batch.engine, &after) == FLASHJIT_OK);
    CHECK(kernels_of(after) == kernels_of(before));
  }
}

TEST_CASE("a plan says through C what it is for, and takes the sizes that it was made for") {
  PlannedBatch batch;
  const std::int64_t words = batch.words();
  const HostTensor memory(DType::i32, {words - 1});
  const DlpackView view(memory.view(), kDLCPU);
  CHECK(batch.create(&view) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()).find("memory: must have at least ") == 0);
  CHECK(batch.plan == nullptr);
  REQUIRE(batch.create(nullptr) == FLASHJIT_OK);
  struct {
    flashjit_plan_info known = FLASHJIT_PLAN_INFO_INIT;
    std::uint64_t later = 42;
  } info;
  info.known.struct_size = sizeof info;
  CHECK(flashjit_get_plan_info(batch.plan, &info.known) == FLASHJIT_OK);
  const BatchPlan of_cpp = batch.in_cpp.plan(batch.q.view(), batch.k.view(), batch.v.view(), batch.opts);
  CHECK(std::string(info.known.problem) == "fwd-f16-d64-causal-ragged");
  CHECK(std::string(info.known.variant) == to_string(of_cpp.variant()));
  CHECK(info.known.words == words);
  CHECK(info.known.struct_size == sizeof info);
  CHECK(info.later == 42);
  info.known.struct_size = 8;
  CHECK(flashjit_get_plan_info(batch.plan, &info.known) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()) == "struct_size: must be sizeof(flashjit_plan_info), was 8");
  CHECK(flashjit_get_plan_info(batch.plan, nullptr) == FLASHJIT_INVALID_ARGUMENT);

  const auto refused = [&](const char* message) {
    CHECK(batch.run() == FLASHJIT_INVALID_ARGUMENT);
    CHECK(std::string(flashjit_last_error()) == message);
    CHECK(batch.update() == FLASHJIT_INVALID_ARGUMENT);
    CHECK(std::string(flashjit_last_error()) == message);
  };
  batch.options.causal = 0;
  refused("plan: must be for fwd-f16-d64-ragged, was for fwd-f16-d64-causal-ragged");
  batch.options.causal = 1;
  batch.c_k.shape[0] = batch.c_v.shape[0] = 45;
  refused("plan: rows of keys must be 45 as in the call, was 46");
  batch.c_k.shape[0] = batch.c_v.shape[0] = 46;
  batch.options.plan = batch.plan;
  CHECK(batch.update() == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()) == "plan: must not be given where one is made");
  batch.options.plan = nullptr;
  CHECK(batch.same());
}

TEST_CASE("a plan outlives the engine that made it") {
  PlannedBatch batch;
  REQUIRE(batch.create(nullptr) == FLASHJIT_OK);
  flashjit_engine_destroy(std::exchange(batch.engine, make_engine()));
  CHECK(batch.same());
}

TEST_CASE(
    "functions, their captures and offsets mean through C what they do in C++, and a block mask changes nothing") {
  BothCalls calls;
  const HostTensor slopes = HostTensor::random_normal(DType::f32, {2}, 4), groups = counting(DType::i64, {33, 2}, 6);
  const HostTensor query_offsets = counting(DType::i32, {2}, 9), key_offsets = counting(DType::i32, {2}, 2);
  const std::string score = "score - slope(head) * tilt * abs(query - key)",
                    mask = "groups(key, column) != 1 && key <= query + ahead";
  calls.opts.score = Score(score, {{"slope", slopes.view()}, {"tilt", 0.25}});
  calls.opts.mask = Mask(mask, {{"groups", groups.view()}, {"column", 1}, {"ahead", 20}});
  calls.opts.query_offsets = query_offsets.view();
  calls.opts.key_offsets = key_offsets.view();

  const DlpackView c_slopes(slopes.view(), kDLCPU), c_groups(groups.view(), kDLCPU),
      c_query_offsets(query_offsets.view(), kDLCPU), c_key_offsets(key_offsets.view(), kDLCPU);
  const flashjit_capture of_score[] = {{"slope", &c_slopes, 0, 0, 0}, {"tilt", nullptr, 0.25, 0, 0}},
                         of_mask[] = {{"groups", &c_groups, 0, 0, 0},
                                      {"column", nullptr, 1, 1, 0},
                                      {"ahead", nullptr, 20, 1, 0}};
  const flashjit_function c_score = {sizeof c_score, score.data(), score.size(), of_score, std::size(of_score)},
                          c_mask = {sizeof c_mask, mask.data(), mask.size(), of_mask, std::size(of_mask)};
  calls.options.score = &c_score;
  calls.options.mask = &c_mask;
  calls.options.query_offsets = &c_query_offsets;
  calls.options.key_offsets = &c_key_offsets;
  CHECK(calls.same());

  const flashjit_mask_shape shape = {2, 1, 17, 33};
  std::int64_t dims[FLASHJIT_BLOCK_MASK_RANK];
  CHECK(flashjit_block_mask_dims(&shape, dims) == FLASHJIT_OK);
  HostTensor blocks(DType::i32, Dims(dims, FLASHJIT_BLOCK_MASK_RANK));
  const DlpackView c_blocks(blocks.view(), kDLCPU);
  flashjit_engine* const engine = make_engine("sm_80");
  CHECK(flashjit_block_mask(engine, &calls.options, &shape, &c_blocks) == FLASHJIT_OK);
  flashjit_engine_destroy(engine);
  calls.opts.block_mask = blocks.view();
  calls.options.block_mask = &c_blocks;
  const std::vector<double> without = calls.out.to_doubles();
  CHECK(calls.same());
  const std::vector<double> with = calls.out.to_doubles();
  for (std::size_t i = 0; i < with.size(); ++i) CHECK(std::fabs(with[i] - without[i]) <= 2e-3);  // roundings
}

TEST_CASE("new keys are written through C as in C++, and what is wrong with them is told") {
  flashjit_engine* const engine = make_engine();
  const HostTensor k = HostTensor::random_normal(DType::f16, {2, 3, 2, 32}, 1),
                   q = HostTensor::random_normal(DType::f16, {2, 3, 4, 32}, 2),
                   table = HostTensor::random_normal(DType::f32, {40, 16}, 3);
  const std::vector<double> lengths{7, 30}, pages{3, 0, 1, 2}, tokens{0, 9, 4, 30, 2, 39};
  const HostTensor used = HostTensor::from_doubles(DType::i32, {2}, lengths.data(), 2),
                   page_table = HostTensor::from_doubles(DType::i32, {2, 2}, pages.data(), 4),
                   positions = HostTensor::from_doubles(DType::i64, {6}, tokens.data(), 6);
  HostTensor k_cache(DType::f16, {4, 16, 2, 32}), v_cache = k_cache, q_out(DType::f16, {2, 3, 4, 32}),
                                                  expected_k = k_cache, expected_v = k_cache, expected_q = q_out;
  AppendOptions opts;
  opts.seqused_kv = used.view(), opts.page_table = page_table.view(), opts.positions = positions.view();
  opts.rotary_cos = opts.rotary_sin = table.view(), opts.rotary_interleaved = true;
  opts.q = q.view(), opts.q_out = expected_q.view();
  Engine(emulating()).append(k.view(), k.view(), expected_k.view(), expected_v.view(), opts);

  const DlpackView c_k(k.view(), kDLCPU), c_q(q.view(), kDLCPU), c_table(table.view(), kDLCPU),
      c_used(used.view(), kDLCPU), c_pages(page_table.view(), kDLCPU), c_positions(positions.view(), kDLCPU),
      c_k_cache(k_cache.view(), kDLCPU), c_v_cache(v_cache.view(), kDLCPU), c_q_out(q_out.view(), kDLCPU);
  flashjit_append_options options = FLASHJIT_APPEND_OPTIONS_INIT;
  options.seqused_kv = &c_used, options.page_table = &c_pages, options.positions = &c_positions;
  options.rotary_cos = options.rotary_sin = &c_table, options.rotary_interleaved = 1;
  options.q = &c_q, options.q_out = &c_q_out;
  REQUIRE(flashjit_append(engine, &c_k, &c_k, &c_k_cache, &c_v_cache, &options) == FLASHJIT_OK);
  CHECK(same_bytes(k_cache, expected_k));
  CHECK(same_bytes(v_cache, expected_v));
  CHECK(same_bytes(q_out, expected_q));

  const auto refusal = [&](const DLTensor* given_k, const flashjit_append_options* given) {
    CHECK(flashjit_append(engine, given_k, &c_k, &c_k_cache, &c_v_cache, given) == FLASHJIT_INVALID_ARGUMENT);
    return std::string(flashjit_last_error());
  };
  CHECK(refusal(&c_k, nullptr) == "options: must not be null");
  CHECK(refusal(nullptr, &options) == "k: must point to a tensor, was null");
  flashjit_append_options bad = options;
  bad.rotary_interleaved = 2;
  CHECK(refusal(&c_k, &bad) == "rotary_interleaved: must be 0 or 1, was 2");
  bad = options, bad.struct_size = 8;
  CHECK(refusal(&c_k, &bad) == "struct_size: must be sizeof(flashjit_append_options), was 8");
  bad = options, bad.reserved = 1;
  CHECK(refusal(&c_k, &bad) == "reserved: must be 0, was 1");
  bad = options, bad.slots = &c_positions;
  CHECK(refusal(&c_k, &bad) == "seqused_kv: must not be given beside slots, which say where tokens go");
  bad = options, bad.q_out = nullptr;
  CHECK(refusal(&c_k, &bad) == "q_out: must be given beside q, was not");
  flashjit_engine_destroy(engine);
}

TEST_CASE("a cache of e4m3 is written and read through C as in C++") {
  flashjit_engine* const engine = make_engine();
  const HostTensor k = HostTensor::random_normal(DType::f16, {1, 20, 2, 32}, 1),
                   q = HostTensor::random_normal(DType::f16, {1, 3, 4, 32}, 2), used = counting(DType::i32, {1}, 1);
  store_element(const_cast<void*>(used.data()), DType::i32, 0, 20);
  HostTensor k_cache(DType::e4m3, {1, 24, 2, 32}), v_cache = k_cache, k_scale(DType::f32, {1, 24, 2}),
                                                   v_scale = k_scale, out(DType::f16, {1, 3, 4, 32});
  HostTensor expected_k = k_cache, expected_v = v_cache, expected_scale = k_scale, other_scale = v_scale,
             expected = out;
  AppendOptions append;
  append.seqused_kv = used.view(), append.k_scale = expected_scale.view(), append.v_scale = other_scale.view();
  AttentionOptions attention;
  attention.seqused_kv = used.view(), attention.k_scale = append.k_scale, attention.v_scale = append.v_scale;
  Engine reference(emulating());
  reference.append(k.view(), k.view(), expected_k.view(), expected_v.view(), append);
  reference.attention(q.view(), expected_k.view(), expected_v.view(), expected.view(), attention);

  const DlpackView c_k(k.view(), kDLCPU), c_q(q.view(), kDLCPU), c_used(used.view(), kDLCPU),
      c_k_cache(k_cache.view(), kDLCPU), c_v_cache(v_cache.view(), kDLCPU), c_k_scale(k_scale.view(), kDLCPU),
      c_v_scale(v_scale.view(), kDLCPU), c_out(out.view(), kDLCPU);
  flashjit_append_options to_cache = FLASHJIT_APPEND_OPTIONS_INIT;
  to_cache.seqused_kv = &c_used, to_cache.k_scale = &c_k_scale, to_cache.v_scale = &c_v_scale;
  REQUIRE(flashjit_append(engine, &c_k, &c_k, &c_k_cache, &c_v_cache, &to_cache) == FLASHJIT_OK);
  CHECK(same_bytes(k_cache, expected_k));
  CHECK(same_bytes(k_scale, expected_scale));
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.seqused_kv = &c_used, options.k_scale = &c_k_scale, options.v_scale = &c_v_scale;
  REQUIRE(flashjit_attention(engine, &c_q, &c_k_cache, &c_v_cache, &c_out, &options) == FLASHJIT_OK);
  CHECK(same_bytes(out, expected));
  options.v_scale = nullptr;
  CHECK(flashjit_attention(engine, &c_q, &c_k_cache, &c_v_cache, &c_out, &options) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()) == "v_scale: must be given beside k_scale, was not");
  flashjit_engine_destroy(engine);
}

TEST_CASE("a cache of MLA is written through C as in C++") {
  flashjit_engine* const engine = make_engine();
  const HostTensor k = HostTensor::random_normal(DType::f16, {1, 20, 1, 32}, 1),
                   k_rotary = HostTensor::random_normal(DType::f16, {1, 20, 1, 16}, 2);
  const double length = 20;
  const HostTensor used = HostTensor::from_doubles(DType::i32, {1}, &length, 1);
  HostTensor cache(DType::e4m3, {1, 24, 1, 32}), rotary_cache(DType::f16, {1, 24, 1, 16}),
      scale(DType::f32, {1, 24, 1});
  HostTensor expected = cache, expected_rotary = rotary_cache, expected_scale = scale;
  AppendOptions opts;
  opts.seqused_kv = used.view(), opts.k_scale = opts.v_scale = expected_scale.view();
  opts.k_rotary = k_rotary.view(), opts.k_rotary_cache = expected_rotary.view();
  Engine(emulating()).append(k.view(), k.view(), expected.view(), expected.view(), opts);

  const DlpackView c_k(k.view(), kDLCPU), c_k_rotary(k_rotary.view(), kDLCPU), c_used(used.view(), kDLCPU),
      c_cache(cache.view(), kDLCPU), c_rotary_cache(rotary_cache.view(), kDLCPU), c_scale(scale.view(), kDLCPU);
  flashjit_append_options options = FLASHJIT_APPEND_OPTIONS_INIT;
  options.seqused_kv = &c_used, options.k_scale = options.v_scale = &c_scale;
  options.k_rotary = &c_k_rotary, options.k_rotary_cache = &c_rotary_cache;
  REQUIRE(flashjit_append(engine, &c_k, &c_k, &c_cache, &c_cache, &options) == FLASHJIT_OK);
  CHECK(same_bytes(cache, expected));
  CHECK(same_bytes(rotary_cache, expected_rotary));
  CHECK(same_bytes(scale, expected_scale));
  options.struct_size = offsetof(flashjit_append_options, k_rotary);  // of a caller that does not know of them
  CHECK(flashjit_append(engine, &c_k, &c_k, &c_cache, &c_cache, &options) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()).rfind("v_cache: must not overlap k_cache", 0) == 0);
  flashjit_engine_destroy(engine);
}

TEST_CASE("products of e4m3 are through C what they are in C++") {
  flashjit_engine* const engine = make_engine();
  const HostTensor q = HostTensor::random_normal(DType::e4m3, {2, 20, 4, 32}, 1),
                   k = HostTensor::random_normal(DType::e4m3, {2, 40, 2, 32}, 2),
                   v = HostTensor::random_normal(DType::e4m3, {2, 40, 2, 32}, 3);
  const double of_q[] = {0.5, 1, 2, 0.25, 1, 1, 3, 2}, of_k[] = {2, 0.5}, of_v[] = {3};
  const HostTensor q_scale = HostTensor::from_doubles(DType::f32, {2, 4}, of_q, 8),
                   k_scale = HostTensor::from_doubles(DType::f32, {2}, of_k, 2),
                   v_scale = HostTensor::from_doubles(DType::f32, {1}, of_v, 1);
  const DlpackView c_q(q.view(), kDLCPU), c_k(k.view(), kDLCPU), c_v(v.view(), kDLCPU),
      c_q_scale(q_scale.view(), kDLCPU), c_k_scale(k_scale.view(), kDLCPU), c_v_scale(v_scale.view(), kDLCPU);
  for (const bool is_fast : {false, true}) {
    HostTensor out(is_fast ? DType::f16 : DType::bf16, {2, 20, 4, 32}), expected = out;
    AttentionOptions attention;
    attention.q_scale = q_scale.view(), attention.k_scale = k_scale.view(), attention.v_scale = v_scale.view();
    attention.out_dtype = out.dtype();
    if (is_fast) attention.accumulate = Accumulate::fast;
    Engine(emulating()).attention(q.view(), k.view(), v.view(), expected.view(), attention);
    const DlpackView c_out(out.view(), kDLCPU);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.q_scale = &c_q_scale, options.k_scale = &c_k_scale, options.v_scale = &c_v_scale;
    options.fast_sums = is_fast;
    if (is_fast) options.out_dtype = {kDLFloat, 16, 1};
    REQUIRE(flashjit_attention(engine, &c_q, &c_k, &c_v, &c_out, &options) == FLASHJIT_OK);
    CHECK(same_bytes(out, expected));
  }
  flashjit_engine_destroy(engine);
}

TEST_CASE("rows become e4m3 through C as in C++, and what is wrong is told") {
  flashjit_engine* const engine = make_engine();
  const HostTensor x = HostTensor::random_normal(DType::f16, {2, 20, 3, 32}, 1),
                   table = HostTensor::random_normal(DType::f32, {20, 16}, 3);
  HostTensor out(DType::e4m3, x.shape()), scale(DType::f32, {2, 3, 2}), expected = out, expected_scale = scale;
  QuantizeOptions opts;
  opts.scale_of = ScaleOf::block, opts.block_size = 16, opts.rotation_seed = 9;
  opts.rotary_cos = opts.rotary_sin = table.view(), opts.rotary_interleaved = true;
  Engine(emulating()).quantize(x.view(), expected.view(), expected_scale.view(), opts);

  const DlpackView c_x(x.view(), kDLCPU), c_out(out.view(), kDLCPU), c_scale(scale.view(), kDLCPU),
      c_table(table.view(), kDLCPU);
  flashjit_quantize_options options = FLASHJIT_QUANTIZE_OPTIONS_INIT;
  options.scale_of = FLASHJIT_SCALE_OF_BLOCK, options.block_size = 16;
  options.rotates = 1, options.rotation_seed = 9;
  options.rotary_cos = options.rotary_sin = &c_table, options.rotary_interleaved = 1;
  REQUIRE(flashjit_quantize(engine, &c_x, &c_out, &c_scale, &options) == FLASHJIT_OK);
  CHECK(same_bytes(out, expected));
  CHECK(same_bytes(scale, expected_scale));
  // Libraries without the dtype have bytes.
  std::memset(out.data(), 0, out.element_count());
  DLTensor bytes = c_out;
  bytes.dtype = {kDLUInt, 8, 1};
  REQUIRE(flashjit_quantize(engine, &c_x, &bytes, &c_scale, &options) == FLASHJIT_OK);
  CHECK(same_bytes(out, expected));
  HostTensor of_e5m2(DType::e5m2, x.shape());
  Engine(emulating()).quantize(x.view(), of_e5m2.view(), expected_scale.view(), opts);
  options.bytes_are_e5m2 = 1;
  REQUIRE(flashjit_quantize(engine, &c_x, &bytes, &c_scale, &options) == FLASHJIT_OK);
  CHECK(std::memcmp(out.data(), of_e5m2.data(), out.element_count()) == 0);
  options.struct_size = offsetof(flashjit_quantize_options, bytes_are_e5m2);  // as it was before
  REQUIRE(flashjit_quantize(engine, &c_x, &bytes, &c_scale, &options) == FLASHJIT_OK);
  CHECK(same_bytes(out, expected));
  options.struct_size = sizeof(options), options.bytes_are_e5m2 = 0;

  const auto refusal = [&](const DLTensor* given_out, const flashjit_quantize_options* given) {
    CHECK(flashjit_quantize(engine, &c_x, given_out, &c_scale, given) == FLASHJIT_INVALID_ARGUMENT);
    return std::string(flashjit_last_error());
  };
  CHECK(refusal(nullptr, &options) == "out: must point to a tensor, was null");
  CHECK(refusal(&c_out, nullptr) == "scale: shape must be [2, 3], was [2, 3, 2]");
  flashjit_quantize_options bad = options;
  bad.scale_of = 3;
  CHECK(refusal(&c_out, &bad) == "scale_of: must be a flashjit_scale_of, was 3");
  bad = options, bad.rotates = 0;
  CHECK(refusal(&c_out, &bad) == "rotation_seed: must be 0 without rotates, was 9");
  bad = options, bad.struct_size = 8;
  CHECK(refusal(&c_out, &bad) == "struct_size: must be sizeof(flashjit_quantize_options), was 8");
  flashjit_engine_destroy(engine);
}

TEST_CASE("parts are joined through C as in C++, and what is wrong with them is told") {
  flashjit_engine* const engine = make_engine();
  const HostTensor out_a = HostTensor::random_normal(DType::f16, {1, 3, 2, 16}, 1),
                   out_b = HostTensor::random_normal(DType::f16, {1, 3, 2, 16}, 2),
                   lse_a = HostTensor::random_normal(DType::f32, {1, 2, 3}, 3),
                   lse_b = HostTensor::random_normal(DType::f32, {1, 2, 3}, 4);
  const DlpackView c_out_a(out_a.view(), kDLCPU), c_out_b(out_b.view(), kDLCPU), c_lse_a(lse_a.view(), kDLCPU),
      c_lse_b(lse_b.view(), kDLCPU);
  HostTensor out(DType::f32, {1, 3, 2, 16}), lse(DType::f32, {1, 2, 3}), expected(DType::f32, {1, 3, 2, 16}),
      expected_lse(DType::f32, {1, 2, 3});
  const DlpackView c_out(out.view(), kDLCPU), c_lse(lse.view(), kDLCPU);
  const flashjit_partial parts[] = {{&c_out_a, &c_lse_a}, {&c_out_b, &c_lse_b}};
  REQUIRE(flashjit_merge(engine, parts, 2, &c_out, &c_lse, nullptr) == FLASHJIT_OK);
  MergeOptions opts;
  opts.lse = expected_lse.view();
  Engine(emulating()).merge({{out_a.view(), lse_a.view()}, {out_b.view(), lse_b.view()}}, expected.view(), opts);
  CHECK(same_bytes(out, expected));
  CHECK(same_bytes(lse, expected_lse));
  CHECK(flashjit_merge(engine, parts, 2, &c_out, nullptr, nullptr) == FLASHJIT_OK);

  const auto refusal = [&](const flashjit_partial* given, std::size_t count) {
    CHECK(flashjit_merge(engine, given, count, &c_out, &c_lse, nullptr) == FLASHJIT_INVALID_ARGUMENT);
    return std::string(flashjit_last_error());
  };
  const flashjit_partial lacking[] = {{&c_out_a, &c_lse_a}, {&c_out_b, nullptr}};
  CHECK(refusal(parts, 0) == "parts: must have at least 1, had 0");
  CHECK(refusal(nullptr, 2).find("parts: must") == 0);
  CHECK(refusal(lacking, 2).find("parts[1].lse: must") == 0);
  flashjit_engine_destroy(engine);
}

TEST_CASE("gradients through C are those of C++") {
  const auto rows = [](std::int64_t seed) { return HostTensor::random_normal(DType::f16, {1, 17, 4, 64}, seed); };
  const auto keys = [](std::int64_t seed) { return HostTensor::random_normal(DType::f16, {1, 33, 2, 64}, seed); };
  const HostTensor q = rows(1), k = keys(2), v = keys(3), dout = rows(4),
                   dlse = HostTensor::random_normal(DType::f32, {1, 4, 17}, 5);
  HostTensor out(DType::f16, {1, 17, 4, 64}), lse(DType::f32, {1, 4, 17});
  EngineOptions engine_options = emulating();
  engine_options.emulate = "sm_80";
  Engine in_cpp(engine_options);
  AttentionOptions opts;
  opts.causal = true, opts.softcap = 3, opts.lse = lse.view();
  const std::string text = "score * tilt + sigmoid(score)";
  opts.score = Score(text, {{"tilt", 0.75}});
  in_cpp.attention(q.view(), k.view(), v.view(), out.view(), opts);
  opts.lse.reset();
  HostTensor dq(DType::f16, q.shape()), dk(DType::f32, k.shape()), dv(DType::f32, k.shape()),
      c_dq(DType::f16, q.shape()), c_dk(DType::f32, k.shape()), c_dv(DType::f32, k.shape());
  in_cpp.attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(),
                            {dq.view(), dk.view(), dv.view()}, opts, {dlse.view(), {}});

  const DlpackView of_dout(dout.view(), kDLCPU), of_q(q.view(), kDLCPU), of_k(k.view(), kDLCPU), of_v(v.view(), kDLCPU),
      of_out(out.view(), kDLCPU), of_lse(lse.view(), kDLCPU), of_dlse(dlse.view(), kDLCPU), into_q(c_dq.view(), kDLCPU),
      into_k(c_dk.view(), kDLCPU), into_v(c_dv.view(), kDLCPU);
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = 1, options.softcap = 3;
  const flashjit_capture tilt = {"tilt", nullptr, 0.75, 0, 0};
  const flashjit_function score = {sizeof score, text.data(), text.size(), &tilt, 1};
  options.score = &score;
  flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;
  into.deterministic = 1;
  into.dq = &into_q, into.dk = &into_k, into.dv = &into_v;
  flashjit_engine* const engine = make_engine("sm_80");
  CHECK_MESSAGE(flashjit_attention_backward(engine, &of_dout, &of_q, &of_k, &of_v, &of_out, &of_lse, &of_dlse, &into,
                                            &options) == FLASHJIT_OK,
                flashjit_last_error());
  flashjit_engine_destroy(engine);
  CHECK(same_bytes(c_dq, dq));
  CHECK(same_bytes(c_dk, dk));
  CHECK(same_bytes(c_dv, dv));
}

TEST_CASE("a call of a prepared problem compiles nothing") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.head_dim_v = 32;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);
  CHECK(kernels_of(prepared) > 0);

  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1),
                   v = HostTensor::random_normal(DType::bf16, {1, 4, 1, 32}, 3);
  HostTensor out(DType::bf16, {1, 4, 1, 32});
  store_element(out.data(), DType::bf16, 0, std::numeric_limits<double>::quiet_NaN());
  const DlpackView c_q(q.view(), kDLCPU), c_v(v.view(), kDLCPU), c_out(out.view(), kDLCPU);
  CHECK(flashjit_attention(engine, &c_q, &c_q, &c_v, &c_out, nullptr) == FLASHJIT_OK);
  CHECK_FALSE(std::isnan(load_element(out.data(), DType::bf16, 0)));
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(kernels_of(called) == kernels_of(prepared));
  flashjit_engine_destroy(engine);
}

TEST_CASE("dropout through C is that of C++, at random, by a state and by a mask") {
  HostTensor state(DType::i64, {2});
  for (int i = 0; i < 2; ++i) store_element(state.data(), DType::i64, i, 1e10 + i);
  constexpr double kProbability = 0.5;
  constexpr std::uint64_t kSeed = 1234567890123456789u, kOffset = 9876543210u;
  const flashjit_mask_shape shape = {2, 2, 17, 33};
  HostTensor kept(DType::boolean, {2, 2, 17, 33});
  CHECK(flashjit_dropout_mask(kProbability, kSeed, kOffset, &shape, static_cast<std::uint8_t*>(kept.data())) ==
        FLASHJIT_OK);
  for (std::int64_t i = 0; i < 2 * 2 * 17 * 33; i += 7)
    CHECK((load_element(kept.data(), DType::boolean, i) != 0) ==
          keeps({kProbability, kSeed, kOffset}, 2, i / 33 / 17 / 2, i / 33 / 17 % 2, i / 33 % 17, i % 33));
  const DlpackView c_state(state.view(), kDLCPU), c_kept(kept.view(), kDLCPU);

  BothCalls at_random;
  at_random.opts.dropout = {kProbability, kSeed, kOffset};
  at_random.options.dropout = kProbability;
  at_random.options.dropout_seed = kSeed;
  at_random.options.dropout_offset = kOffset;
  CHECK(at_random.same());
  BothCalls by_mask;
  by_mask.opts.dropout.probability = by_mask.options.dropout = kProbability;
  by_mask.opts.dropout_mask = kept.view();
  by_mask.options.dropout_mask = &c_kept;
  CHECK(by_mask.same());
  CHECK(same_bytes(by_mask.out, at_random.out));
  BothCalls by_state;
  by_state.opts.dropout.probability = by_state.options.dropout = kProbability;
  by_state.opts.dropout_state = state.view();
  by_state.options.dropout_state = &c_state;
  CHECK(by_state.same());
  CHECK_FALSE(same_bytes(by_state.out, at_random.out));
}

TEST_CASE("what is prepared for caps and slopes serves those of every value") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.softcap = problem.alibi = 1;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);

  constexpr float kGentle = 0.1f, kSteep = 1e4f;
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1);
  const HostTensor out(DType::bf16, {1, 4, 1, 64});
  HostTensor slopes(DType::f32, {1});
  const DlpackView c_q(q.view(), kDLCPU), c_out(out.view(), kDLCPU), c_slopes(slopes.view(), kDLCPU);
  for (const float slope : {kGentle, kSteep}) {
    store_element(slopes.data(), DType::f32, 0, slope);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.softcap = 30 * slope;
    options.alibi_slopes = &c_slopes;
    CHECK(flashjit_attention(engine, &c_q, &c_q, &c_q, &c_out, &options) == FLASHJIT_OK);
    CHECK(same_bytes(out, q) == (slope == kSteep));  // each query sees its own key alone
  }
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(kernels_of(called) == kernels_of(prepared));
  flashjit_engine_destroy(engine);
}

TEST_CASE("what is prepared for chunks and sinks serves those of every size and value") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.chunk = problem.sinks = 1;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);

  constexpr std::int64_t kOwnKey = 1, kPairs = 2;
  constexpr float kNone = -std::numeric_limits<float>::infinity(), kEverything = 1e4f;
  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1);
  const HostTensor out(DType::bf16, {1, 4, 1, 64});
  HostTensor sinks(DType::f32, {1});
  const DlpackView c_q(q.view(), kDLCPU), c_out(out.view(), kDLCPU), c_sinks(sinks.view(), kDLCPU);
  const auto attend = [&](std::int64_t chunk, float sink) {
    store_element(sinks.data(), DType::f32, 0, sink);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.chunk = chunk;
    options.sinks = &c_sinks;
    CHECK(flashjit_attention(engine, &c_q, &c_q, &c_q, &c_out, &options) == FLASHJIT_OK);
  };
  attend(kOwnKey, kNone);
  CHECK(same_bytes(out, q));
  attend(kPairs, kNone);
  CHECK_FALSE(same_bytes(out, q));
  attend(kPairs, kEverything);
  CHECK(load_element(q.data(), DType::bf16, 0) != 0);
  CHECK(load_element(out.data(), DType::bf16, 0) == 0);
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(kernels_of(called) == kernels_of(prepared));
  flashjit_engine_destroy(engine);
}

TEST_CASE("what is prepared for windows serves those of every size") {
  flashjit_engine* const engine = make_engine();
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.head_dim = 64;
  problem.causal = problem.window = 1;
  CHECK(flashjit_prepare(engine, &problem, -1) == FLASHJIT_OK);
  flashjit_counters prepared = FLASHJIT_COUNTERS_INIT, called = FLASHJIT_COUNTERS_INIT;
  CHECK(flashjit_get_counters(engine, &prepared) == FLASHJIT_OK);

  const HostTensor q = HostTensor::random_normal(DType::bf16, {1, 4, 1, 64}, 1);
  const HostTensor out(DType::bf16, {1, 4, 1, 64});
  const DlpackView c_q(q.view(), kDLCPU), c_out(out.view(), kDLCPU);
  for (const flashjit_window& window : {flashjit_window{2, 0}, flashjit_window{0, 0}, flashjit_window{5000, 0}}) {
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.window = &window;
    CHECK(flashjit_attention(engine, &c_q, &c_q, &c_q, &c_out, &options) == FLASHJIT_OK);
    if (window.left == 0) CHECK(same_bytes(out, q));  // each query sees its own key alone
  }
  CHECK(flashjit_get_counters(engine, &called) == FLASHJIT_OK);
  CHECK(kernels_of(called) == kernels_of(prepared));
  flashjit_engine_destroy(engine);
}

namespace {

// Calls on an engine that has prepared their problem.
class PreparedCalls {
 public:
  explicit PreparedCalls(flashjit_problem problem) {
    problem.dtype = {kDLFloat, 16, 1};
    problem.head_dim = 64;
    const flashjit_status status = flashjit_prepare(engine_, &problem, -1);
    CHECK_MESSAGE(status == FLASHJIT_OK, std::string(flashjit_last_error()));
    CHECK(compiles() > 0);
  }
  ~PreparedCalls() { flashjit_engine_destroy(engine_); }
  PreparedCalls(const PreparedCalls&) = delete;
  PreparedCalls& operator=(const PreparedCalls&) = delete;

  flashjit_engine* engine() const { return engine_; }
  bool compile_nothing(const flashjit_attention_options& options) const {
    const std::uint64_t before = compiles();
    const DlpackView q(queries_.view(), kDLCPU), k(keys_.view(), kDLCPU), out(out_.view(), kDLCPU);
    const flashjit_status status = flashjit_attention(engine_, &q, &k, &k, &out, &options);
    CHECK_MESSAGE(status == FLASHJIT_OK, std::string(flashjit_last_error()));
    return compiles() == before;
  }

 private:
  std::uint64_t compiles() const {
    flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
    CHECK(flashjit_get_counters(engine_, &counters) == FLASHJIT_OK);
    return kernels_of(counters);
  }

  flashjit_engine* engine_ = make_engine("sm_80");
  HostTensor queries_ = HostTensor::random_normal(DType::f16, {2, 17, 2, 64}, 1),
             keys_ = HostTensor::random_normal(DType::f16, {2, 33, 1, 64}, 2), out_{DType::f16, {2, 17, 2, 64}};
};

flashjit_problem problem_with(std::int32_t flashjit_problem::*feature) {
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.*feature = 1;
  return problem;
}

flashjit_problem problem_with_bias(const DLDataType& dtype) {
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.bias = dtype;
  return problem;
}

}  // namespace

TEST_CASE("what is prepared for a tensor of scores or masks serves those of every shape and value") {
  const struct {
    std::string name;
    flashjit_problem problem;
    const DLTensor* flashjit_attention_options::*field;
    DType dtype;
    std::vector<Dims> shapes;
  } cases[] = {
      {"bf16 bias",
       problem_with_bias({kDLBfloat, 16, 1}),
       &flashjit_attention_options::bias,
       DType::bf16,
       {{2, 2, 17, 33}, {1, 1, 1, 33}}},
      {"f32 bias",
       problem_with_bias({kDLFloat, 32, 1}),
       &flashjit_attention_options::bias,
       DType::f32,
       {{2, 2, 17, 33}, {1, 1, 1, 33}}},
      {"boolean_mask",
       problem_with(&flashjit_problem::boolean_mask),
       &flashjit_attention_options::boolean_mask,
       DType::boolean,
       {{2, 1, 17, 33}, {1, 2, 17, 33}}},
      {"documents",
       problem_with(&flashjit_problem::documents),
       &flashjit_attention_options::documents,
       DType::i32,
       {{2, 33}, {1, 33}}},
      {"prefix", problem_with(&flashjit_problem::prefix), &flashjit_attention_options::prefix, DType::i32, {{2}}},
      {"tree",
       problem_with(&flashjit_problem::tree),
       &flashjit_attention_options::tree,
       DType::i64,
       {{2, 17, 1}, {1, 17, 2}}}};
  for (const auto& feature : cases) {
    CAPTURE(feature.name);
    const PreparedCalls calls(feature.problem);
    for (const Dims& shape : feature.shapes) {
      const HostTensor tensor = counting(feature.dtype, shape, 2 + shape.size());
      const DlpackView view(tensor.view(), kDLCPU);
      flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
      options.*feature.field = &view;
      CHECK(calls.compile_nothing(options));
    }
  }
}

TEST_CASE("what is prepared for prefixes serves calls that are causal, too") {
  flashjit_problem problem = problem_with(&flashjit_problem::prefix);
  problem.causal = 1;
  const PreparedCalls calls(problem);
  const HostTensor prefix = counting(DType::i32, {2}, 7);
  const DlpackView view(prefix.view(), kDLCPU);
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.prefix = &view;
  for (const std::int32_t causal : {0, 1}) {
    options.causal = causal;
    CHECK(calls.compile_nothing(options));
  }
}

TEST_CASE("what is prepared for ragged batches serves every way to say where sequences lie") {
  const PreparedCalls calls(problem_with(&flashjit_problem::ragged));
  const HostTensor of_sequences = counting(DType::i32, {2}, 7);
  const DlpackView view(of_sequences.view(), kDLCPU);
  for (const auto field : {&flashjit_attention_options::seqused_q, &flashjit_attention_options::seqused_kv,
                           &flashjit_attention_options::leftpad_kv, &flashjit_attention_options::batch_indices_kv}) {
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.*field = &view;
    CHECK(calls.compile_nothing(options));
    options.max_seqlen_q = 3;
    CHECK(calls.compile_nothing(options));
  }
}

TEST_CASE("what is prepared for pages serves every table of them") {
  flashjit_problem problem = problem_with(&flashjit_problem::ragged);
  problem.paged = 1;
  const PreparedCalls calls(problem);
  const HostTensor lengths = counting(DType::i32, {2}, 30), rows = counting(DType::i32, {2}, 2);
  const DlpackView lengths_view(lengths.view(), kDLCPU), rows_view(rows.view(), kDLCPU);
  for (const Dims& shape : {Dims{2, 1}, Dims{2, 5}, Dims{3, 2}}) {
    const HostTensor table = counting(DType::i32, shape, 2);
    const DlpackView view(table.view(), kDLCPU);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.page_table = &view;
    if (shape[0] > 2) options.batch_indices_kv = &rows_view;
    CHECK(calls.compile_nothing(options));
    options.seqused_kv = &lengths_view;
    options.max_seqlen_kv = 30;
    CHECK(calls.compile_nothing(options));
  }
}

TEST_CASE("what is prepared for block masks serves those of all") {
  flashjit_problem problem = problem_with(&flashjit_problem::documents);
  problem.block_mask = 1;
  const PreparedCalls calls(problem);
  const HostTensor documents = counting(DType::i32, {1, 33}, 4);
  const DlpackView view(documents.view(), kDLCPU);
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.documents = &view;
  for (const flashjit_mask_shape& shape : {flashjit_mask_shape{2, 2, 17, 33}, flashjit_mask_shape{1, 1, 17, 33}}) {
    std::int64_t dims[FLASHJIT_BLOCK_MASK_RANK];
    CHECK(flashjit_block_mask_dims(&shape, dims) == FLASHJIT_OK);
    HostTensor blocks(DType::i32, Dims(dims, FLASHJIT_BLOCK_MASK_RANK));
    const DlpackView blocks_view(blocks.view(), kDLCPU);
    options.block_mask = nullptr;
    CHECK(flashjit_block_mask(calls.engine(), &options, &shape, &blocks_view) == FLASHJIT_OK);
    options.block_mask = &blocks_view;
    CHECK(calls.compile_nothing(options));
  }
}

namespace {

// Functions that capture a tensor and a number each.
struct Functions {
  static constexpr std::string_view kScore = "score - tilt * slope(head)", kMask = "groups(key, column) != 1";

  Functions(const DLTensor& slope, double tilt, const DLTensor& groups, int column)
      : of_score{{"slope", &slope, 0, 0, 0}, {"tilt", nullptr, tilt, 0, 0}},
        of_mask{{"groups", &groups, 0, 0, 0}, {"column", nullptr, static_cast<double>(column), 1, 0}} {}
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  const flashjit_capture of_score[2], of_mask[2];
  const flashjit_function score = {sizeof score, kScore.data(), kScore.size(), of_score, 2},
                          mask = {sizeof mask, kMask.data(), kMask.size(), of_mask, 2};
};

// What was [columns, rows] as [rows, columns]: the elements of the last dimension are no neighbours.
void transpose(DlpackView& view) {
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.steps[0], view.steps[1]);
}

}  // namespace

TEST_CASE("what is prepared for functions serves captures of every shape and value, and needs none of their memory") {
  DlpackView slope(Tensor(nullptr, DType::f32, {7}), kDLCPU), groups(Tensor(nullptr, DType::i64, {5, 9}), kDLCPU);
  slope.device = groups.device = {};
  transpose(groups);
  const Functions types(slope, 0, groups, 0);
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  problem.score = &types.score;
  problem.mask = &types.mask;
  const PreparedCalls calls(problem);
  for (const int columns : {2, 3}) {
    const HostTensor slopes = HostTensor::random_normal(DType::f32, {columns}, 4),
                     of_keys = counting(DType::i64, {columns, 33}, 5);
    const DlpackView c_slopes(slopes.view(), kDLCPU);
    DlpackView c_groups(of_keys.view(), kDLCPU);
    transpose(c_groups);
    const Functions functions(c_slopes, 0.25 * columns, c_groups, columns - 1);
    flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
    options.score = &functions.score;
    options.mask = &functions.mask;
    CHECK(calls.compile_nothing(options));
  }
}
