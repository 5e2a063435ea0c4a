// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashjit.h"
#include "flashjit/batch_plan.h"
#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "flashjit/version.h"
#include "generator/dtype.h"
#include "generator/functions.h"
#include "runtime/api/c_struct.h"
#include "runtime/api/dlpack.h"
#include "runtime/call/dropout.h"
#include "runtime/support/parallel.h"
#include "runtime/support/path_list.h"
#include "runtime/support/reject.h"

struct flashjit_engine {
  flashjit::Engine engine;
};

struct flashjit_plan {
  explicit flashjit_plan(flashjit::BatchPlan made)
      : plan(std::move(made)), problem(to_string(plan.problem())), variant(to_string(plan.variant())) {}

  flashjit::BatchPlan plan;
  std::string problem, variant;
};

namespace {

using flashjit::Engine;
using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::generator::FunctionKind;
using flashjit::generator::FunctionText;
using flashjit::runtime::MemoryKind;
using flashjit::runtime::reject;

// --- Errors ----------------------------------------------------------------------------------------------------------

constexpr struct {
  flashjit_status status;
  ErrorCode code;
} kStatuses[] = {
    {FLASHJIT_INVALID_ARGUMENT, ErrorCode::invalid_argument},
    {FLASHJIT_UNSUPPORTED, ErrorCode::unsupported},
    {FLASHJIT_NO_DRIVER, ErrorCode::no_driver},
    {FLASHJIT_NO_DEVICE, ErrorCode::no_device},
    {FLASHJIT_NO_COMPILER, ErrorCode::no_compiler},
    {FLASHJIT_COMPILE_FAILED, ErrorCode::compile_failed},
    {FLASHJIT_CACHE_MISS, ErrorCode::cache_miss},
    {FLASHJIT_DRIVER, ErrorCode::driver},
    {FLASHJIT_IO, ErrorCode::io},
    {FLASHJIT_KERNEL_FAULT, ErrorCode::kernel_fault},
};
static_assert(std::size(kStatuses) == static_cast<std::size_t>(ErrorCode::kernel_fault) + 1, "every code has a status");

flashjit_status status_of(ErrorCode code) noexcept {
  for (const auto& row : kStatuses) {
    if (row.code == code) return row.status;
  }
  return FLASHJIT_FAILURE;
}

// The interface promises the message of this thread's last failure.
thread_local std::string last_error;

flashjit_status fail(flashjit_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error = "out of memory";  // short enough to need none
  }
  return status;
}

// No exception leaves the library through C.
template <typename Work>
flashjit_status guarded(Work work) noexcept {
  try {
    last_error.clear();
    work();
    return FLASHJIT_OK;
  } catch (const Error& error) {
    return fail(status_of(error.code()), error.what());
  } catch (const std::exception& error) {
    return fail(FLASHJIT_FAILURE, error.what());
  } catch (...) {
    return fail(FLASHJIT_FAILURE, "unknown failure");
  }
}

// --- Arguments -------------------------------------------------------------------------------------------------------

template <typename Value>
Value& require(const char* name, Value* value) {
  if (!value) reject("{}: must not be null", name);
  return *value;
}

void require_zero(const char* name, std::int32_t value) {
  if (value != 0) reject("{}: must be 0, was {}", name, value);
}

// The interface leaves room for further values.
bool to_bool(const char* name, std::int32_t value) {
  if (value != 0 && value != 1) reject("{}: must be 0 or 1, was {}", name, value);
  return value == 1;
}

Engine& engine_of(flashjit_engine* engine) { return engine ? engine->engine : flashjit::default_engine(); }

flashjit::EngineOptions to_options(const flashjit_engine_options* given) {
  auto options = flashjit::EngineOptions::from_environment();
  if (!given) return options;
  const auto c = flashjit::runtime::read_struct(*given);
  if (c.policy) options.policy = flashjit::parse_policy(c.policy);
  if (c.cache_directory) options.cache_directory = c.cache_directory;
  if (c.bundles) options.bundles = flashjit::runtime::split_paths(c.bundles);
  if (c.tuning) options.tuning = flashjit::parse_tuning_policy(c.tuning);
  if (c.emulate) options.emulate = c.emulate;
  if (c.nvrtc_path) options.nvrtc_path = c.nvrtc_path;
  return options;
}

// What refuses a spelling repeats it; so one that is longer than any is not handed on.
flashjit::Variant to_variant(std::string_view spelling) {
  constexpr std::size_t kLongest = 200;
  if (spelling.size() <= kLongest) return flashjit::parse_variant(spelling);
  reject("variant: must have at most {} characters, had {}", kLongest, spelling.size());
}

flashjit::Capture to_capture(const char* function, const flashjit_capture& given, MemoryKind kind) {
  const char* const name = given.name ? given.name : "";  // which is refused like every other wrong name
  const std::string label = fmt::format("{}: capture {}", function, name);
  require_zero((label + ": reserved").c_str(), given.reserved);
  if (given.tensor)
    return {name, to_tensor(label.c_str(), given.tensor, kind, flashjit::generator::captured_dtypes().c_str())};
  if (!to_bool((label + ": is_integer").c_str(), given.is_integer)) {
    if (std::isfinite(given.number) && std::fabs(given.number) > std::numeric_limits<float>::max())
      reject("{}: must be a number of f32, was {}", label, given.number);
    return {name, given.number};
  }
  using Limits = std::numeric_limits<std::int32_t>;
  if (!(given.number >= Limits::min() && given.number <= Limits::max()) || given.number != std::trunc(given.number))
    reject("{}: must be a whole number of 32 bits, was {}", label, given.number);
  return {name, static_cast<std::int32_t>(given.number)};
}

template <typename Function>
Function to_function(const char* name, const flashjit_function& given, MemoryKind kind) {
  const auto c = flashjit::runtime::read_struct(given);
  const auto require_some = [&](const char* what, const void* pointer, std::size_t count) {
    if (!pointer && count > 0) reject("{}: {} must not be null, as there are {}", name, what, count);
  };
  require_some("text", c.text, c.text_size);
  require_some("captures", c.captures, c.capture_count);
  if (c.capture_count > flashjit::generator::kMaxCaptures)  // before one is read
    reject("{}: must have at most {} captures, had {}", name, flashjit::generator::kMaxCaptures, c.capture_count);
  std::vector<flashjit::Capture> captures;
  for (std::size_t i = 0; i < c.capture_count; ++i) captures.push_back(to_capture(name, c.captures[i], kind));
  return Function(c.text ? std::string(c.text, c.text_size) : std::string(), std::move(captures));
}

void read_tensors(const flashjit_attention_options& c, MemoryKind kind, flashjit::AttentionOptions& options) {
  const auto read = [kind](const char* name, const DLTensor* given, const char* wanted, auto& option) {
    if (given) option = to_tensor(name, given, kind, wanted);
  };
  read("lse", c.lse, "f32", options.lse);
  read("alibi_slopes", c.alibi_slopes, "f32", options.alibi_slopes);
  read("sinks", c.sinks, "f32", options.sinks);
  read("bias", c.bias, "f16, bf16 or f32", options.bias);
  read("boolean_mask", c.boolean_mask, "boolean", options.boolean_mask);
  read("documents", c.documents, "i32", options.documents);
  read("prefix", c.prefix, "i32", options.prefix);
  read("tree", c.tree, "i64", options.tree);
  read("query_offsets", c.query_offsets, "i32", options.query_offsets);
  read("key_offsets", c.key_offsets, "i32", options.key_offsets);
  read("block_mask", c.block_mask, "i32", options.block_mask);
  read("dropout_state", c.dropout_state, "i64", options.dropout_state);
  read("dropout_mask", c.dropout_mask, "boolean", options.dropout_mask);
  read("cu_seqlens_q", c.cu_seqlens_q, "i32", options.cu_seqlens_q);
  read("cu_seqlens_kv", c.cu_seqlens_kv, "i32", options.cu_seqlens_kv);
  read("seqused_q", c.seqused_q, "i32", options.seqused_q);
  read("seqused_kv", c.seqused_kv, "i32", options.seqused_kv);
  read("leftpad_kv", c.leftpad_kv, "i32", options.leftpad_kv);
  read("batch_indices_kv", c.batch_indices_kv, "i32", options.batch_indices_kv);
  read("page_table", c.page_table, "i32", options.page_table);
  read("k_scale", c.k_scale, "f32", options.k_scale);
  read("v_scale", c.v_scale, "f32", options.v_scale);
}

flashjit::AttentionOptions to_options(const flashjit_attention_options* given, MemoryKind kind) {
  flashjit::AttentionOptions options;
  if (!given) return options;
  const auto c = flashjit::runtime::read_struct(*given);
  options.causal = to_bool("causal", c.causal);
  if (to_bool("has_softmax_scale", c.has_softmax_scale)) options.softmax_scale = c.softmax_scale;
  options.stream = static_cast<flashjit::Stream>(c.stream);
  if (c.variant) options.variant = to_variant(c.variant);
  if (c.window) options.window = {c.window->left, c.window->right};
  options.chunk = c.chunk;
  options.softcap = c.softcap;
  options.dropout = {c.dropout, c.dropout_seed, c.dropout_offset};
  options.max_seqlen_q = c.max_seqlen_q;
  options.max_seqlen_kv = c.max_seqlen_kv;
  require_zero("reserved", c.reserved);
  read_tensors(c, kind, options);
  if (c.score) options.score = to_function<flashjit::Score>("score", *c.score, kind);
  if (c.mask) options.mask = to_function<flashjit::Mask>("mask", *c.mask, kind);
  if (c.plan) options.plan = &c.plan->plan;
  options.fixed_split_size = c.fixed_split_size;
  return options;
}

const FunctionText* bias_function(DLDataType given) {
  if (given.code == 0 && given.bits == 0 && given.lanes == 0) return nullptr;
  const auto dtype = flashjit::runtime::to_dtype(given);
  const auto known = flashjit::generator::library_dtypes(FunctionKind::bias);
  if (!dtype || std::find(known.begin(), known.end(), *dtype) == known.end())
    reject("bias: must be f16, bf16 or f32, or all 0 for none, was {}", flashjit::runtime::to_string(given));
  return &flashjit::generator::library_function(FunctionKind::bias, *dtype);
}

// Of a feature whose tensor has one dtype only.
const FunctionText* flagged_function(FunctionKind kind, std::int32_t flag) {
  if (!to_bool(flashjit::generator::word_of(kind), flag)) return nullptr;
  return &flashjit::generator::library_function(kind, flashjit::generator::library_dtypes(kind).front());
}

template <typename Function>
const FunctionText* users_function(const char* name, const flashjit_function* given) {
  return given ? to_function<Function>(name, *given, MemoryKind::any).source() : nullptr;
}

flashjit::Problem to_problem(const flashjit_problem* given) {
  const auto c = flashjit::runtime::read_struct(require("problem", given));
  const auto dtype = flashjit::runtime::to_dtype(c.dtype);
  if (!dtype) reject("dtype: must be f16 or bf16, was {}", flashjit::runtime::to_string(c.dtype));
  require_zero("reserved", c.reserved);
  flashjit::Problem problem{.dtype = *dtype,
                            .head_dim = c.head_dim,
                            .head_dim_v = c.head_dim_v == 0 ? c.head_dim : c.head_dim_v,
                            .causal = to_bool("causal", c.causal),
                            .window = to_bool("window", c.window),
                            .chunk = to_bool("chunk", c.chunk),
                            .softcap = to_bool("softcap", c.softcap),
                            .alibi = to_bool("alibi", c.alibi),
                            .sinks = to_bool("sinks", c.sinks),
                            .prefix = to_bool("prefix", c.prefix),
                            .block_mask = to_bool("block_mask", c.block_mask),
                            .dropout = to_bool("dropout", c.dropout),
                            .ragged = to_bool("ragged", c.ragged),
                            .paged = to_bool("paged", c.paged),
                            .e4m3 = to_bool("e4m3", c.e4m3),
                            .token_scales = to_bool("token_scales", c.token_scales),
                            .bias = bias_function(c.bias),
                            .boolean_mask = flagged_function(FunctionKind::boolean_mask, c.boolean_mask),
                            .documents = flagged_function(FunctionKind::documents, c.documents),
                            .tree = flagged_function(FunctionKind::tree, c.tree),
                            .score = users_function<flashjit::Score>("score", c.score),
                            .mask = users_function<flashjit::Mask>("mask", c.mask),
                            .dropout_mask = flagged_function(FunctionKind::dropout_mask, c.dropout_mask)};
  problem.causal = problem.causal && !problem.prefix;  // as masks_of has it for calls
  if (problem.block_mask && !problem.boolean_mask && !problem.documents && !problem.tree && !problem.mask)
    reject("block_mask: must not be given without boolean_mask, documents, tree or mask, which it is made of");
  if (problem.block_mask && problem.ragged)  // as calls are refused
    reject("block_mask: must not be given for a batch whose sequences are not equally long");
  return problem;
}

flashjit::CallShape to_shape(const flashjit_mask_shape& given) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // as of calls; more would overflow on the way
  const auto check = [&](const char* name, std::int64_t size) {
    if (size < 0 || size > kMost) reject("shape: {} must be from 0 to {}, was {}", name, kMost, size);
  };
  check("batch", given.batch);
  check("num_heads_q", given.num_heads_q);
  check("seqlen_q", given.seqlen_q);
  check("seqlen_kv", given.seqlen_kv);
  return {given.batch, given.seqlen_q, given.seqlen_kv, given.num_heads_q, 1};
}

MemoryKind memory_of(const Engine& engine) { return engine.emulates() ? MemoryKind::host : MemoryKind::device; }

constexpr const char *kRowDTypes = "f16 or bf16", *kKeyDTypes = "f16, bf16 or e4m3";

flashjit::Tensor to_rows(const char* name, const DLTensor* tensor, MemoryKind kind) {
  return flashjit::runtime::to_tensor(name, tensor, kind, kRowDTypes);
}
flashjit::Tensor to_keys(const char* name, const DLTensor* tensor, MemoryKind kind) {
  return flashjit::runtime::to_tensor(name, tensor, kind, kKeyDTypes);
}

void attention(Engine& engine, const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* out,
               const flashjit_attention_options* options) {
  const MemoryKind kind = memory_of(engine);
  // One after the other, so that of several errors the first is told.
  const flashjit::Tensor q_view = to_rows("q", q, kind), k_view = to_keys("k", k, kind), v_view = to_keys("v", v, kind),
                         out_view = to_rows("out", out, kind);
  engine.attention(q_view, k_view, v_view, out_view, to_options(options, kind));
}

// What a plan is made for: its members are read one after the other, too.
struct PlannedCall {
  MemoryKind kind;
  flashjit::Tensor q, k, v;
  flashjit::AttentionOptions options;

  PlannedCall(const Engine& engine, const DLTensor* of_q, const DLTensor* of_k, const DLTensor* of_v,
              const flashjit_attention_options* given)
      : kind(memory_of(engine)),
        q(to_rows("q", of_q, kind)),
        k(to_keys("k", of_k, kind)),
        v(to_keys("v", of_v, kind)),
        options(to_options(given, kind)) {}
};

flashjit::BatchPlan make_plan(Engine& engine, const PlannedCall& call, const DLTensor* memory) {
  if (!memory) return engine.plan(call.q, call.k, call.v, call.options);
  const flashjit::Tensor view = flashjit::runtime::to_tensor("memory", memory, call.kind, "i32");
  return engine.plan(call.q, call.k, call.v, view, call.options);
}

flashjit_plan_info info_of(const flashjit_plan& plan) {
  flashjit_plan_info info = FLASHJIT_PLAN_INFO_INIT;
  info.problem = plan.problem.c_str();
  info.variant = plan.variant.c_str();
  info.words = plan.plan.memory().shape[0];
  return info;
}

void block_mask(Engine& engine, const flashjit_attention_options* options, const flashjit_mask_shape* shape,
                const DLTensor* into) {
  const flashjit::CallShape sizes = to_shape(require("shape", shape));
  const MemoryKind kind = memory_of(engine);
  const flashjit::Tensor mask = flashjit::runtime::to_tensor("into", into, kind, "i32");
  engine.block_mask(to_options(options, kind), sizes, mask);
}

void merge(Engine& engine, const flashjit_partial* parts, std::size_t count, const DLTensor* out, const DLTensor* lse,
           void* stream) {
  const MemoryKind kind = memory_of(engine);
  const auto view = [kind](const std::string& name, const DLTensor* tensor, const char* dtypes) {
    return flashjit::runtime::to_tensor(name.c_str(), tensor, kind, dtypes);
  };
  constexpr const char* kPartDTypes = "f16, bf16 or f32";
  if (count > 0) require("parts", parts);
  std::vector<flashjit::Partial> given;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("parts[{}]", i);
    given.push_back({view(name + ".out", parts[i].out, kPartDTypes), view(name + ".lse", parts[i].lse, "f32")});
  }
  flashjit::MergeOptions options;
  if (lse) options.lse = view("lse", lse, "f32");
  options.stream = static_cast<flashjit::Stream>(stream);
  engine.merge(given, view("out", out, kPartDTypes), options);
}

flashjit::AppendOptions to_options(const flashjit_append_options& c, MemoryKind kind) {
  flashjit::AppendOptions options;
  const auto set = [kind](std::optional<flashjit::Tensor>& option, const char* name, const DLTensor* tensor,
                          const char* dtypes = "i32") {
    if (tensor) option = flashjit::runtime::to_tensor(name, tensor, kind, dtypes);
  };
  constexpr const char *kOfTokens = "i32 or i64", *kOfTables = "f16, bf16 or f32";
  set(options.slots, "slots", c.slots, kOfTokens);
  set(options.seqused_kv, "seqused_kv", c.seqused_kv);
  set(options.cu_seqlens, "cu_seqlens", c.cu_seqlens);
  set(options.page_table, "page_table", c.page_table);
  set(options.batch_indices_kv, "batch_indices_kv", c.batch_indices_kv);
  set(options.leftpad_kv, "leftpad_kv", c.leftpad_kv);
  set(options.rotary_cos, "rotary_cos", c.rotary_cos, kOfTables);
  set(options.rotary_sin, "rotary_sin", c.rotary_sin, kOfTables);
  set(options.positions, "positions", c.positions, kOfTokens);
  set(options.q, "q", c.q, kRowDTypes);
  set(options.q_out, "q_out", c.q_out, kRowDTypes);
  set(options.k_scale, "k_scale", c.k_scale, "f32");
  set(options.v_scale, "v_scale", c.v_scale, "f32");
  options.rotary_interleaved = to_bool("rotary_interleaved", c.rotary_interleaved);
  require_zero("reserved", c.reserved);
  options.stream = static_cast<flashjit::Stream>(c.stream);
  return options;
}

void append(Engine& engine, const DLTensor* k, const DLTensor* v, const DLTensor* k_cache, const DLTensor* v_cache,
            const flashjit_append_options* options) {
  const MemoryKind kind = memory_of(engine);
  engine.append(to_rows("k", k, kind), to_rows("v", v, kind), to_keys("k_cache", k_cache, kind),
                to_keys("v_cache", v_cache, kind),
                to_options(flashjit::runtime::read_struct(require("options", options)), kind));
}

void dropout_mask(const flashjit::Dropout& dropout, const flashjit::CallShape& shape, std::uint8_t* kept) {
  flashjit::kept_share(dropout.probability);  // refuses one that is none
  const auto rows = static_cast<std::size_t>(shape.batch * shape.num_heads_q * shape.seqlen_q);
  const auto keys = static_cast<std::size_t>(shape.seqlen_kv);
  if (rows * keys > 0) require("kept", kept);
  flashjit::runtime::parallel_for(rows, [&](std::size_t i) {
    const auto row = static_cast<std::int64_t>(i), row_of_heads = row / shape.seqlen_q;
    const flashjit::runtime::DropoutRow of_row(dropout, shape.num_heads_q, row_of_heads / shape.num_heads_q,
                                               row_of_heads % shape.num_heads_q, row % shape.seqlen_q);
    for (std::size_t key = 0; key < keys; ++key)
      kept[i * keys + key] = of_row.keeps(static_cast<std::int64_t>(key)) ? 1 : 0;
  });
}

flashjit_counters to_c(const flashjit::Counters& counted) {
  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  counters.memory_hits = counted.memory_hits;
  counters.disk_hits = counted.user_hits + counted.system_hits + counted.bundle_hits + counted.embedded_hits;
  counters.misses = counted.misses;
  counters.compiles = counted.compiles;
  counters.tunings = counted.tunings;
  counters.timed_launches = counted.timed_launches;
  counters.records_used = counted.records_used;
  return counters;
}

}  // namespace

extern "C" {

const char* flashjit_status_name(flashjit_status status) {
  if (status == FLASHJIT_OK) return "ok";
  if (status == FLASHJIT_FAILURE) return "failure";
  for (const auto& row : kStatuses) {
    if (row.status == status) return flashjit::to_string(row.code);
  }
  return "?";
}

const char* flashjit_last_error(void) { return last_error.c_str(); }

const char* flashjit_version(void) { return flashjit::version(); }

flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine) {
  return guarded([&] {
    require("engine", engine) = nullptr;
    *engine = new flashjit_engine{Engine(to_options(options))};
  });
}

void flashjit_engine_destroy(flashjit_engine* engine) { delete engine; }

flashjit_status flashjit_get_counters(flashjit_engine* engine, flashjit_counters* counters) {
  return guarded(
      [&] { flashjit::runtime::write_struct(to_c(engine_of(engine).counters()), require("counters", counters)); });
}

flashjit_status flashjit_attention(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                   const DLTensor* out, const flashjit_attention_options* options) {
  return guarded([&] { attention(engine_of(engine), q, k, v, out, options); });
}

flashjit_status flashjit_plan_words(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                    const flashjit_attention_options* options, int64_t* words) {
  return guarded([&] {
    int64_t& result = require("words", words);
    Engine& made_by = engine_of(engine);
    const PlannedCall call(made_by, q, k, v, options);
    result = made_by.plan_dims(call.q, call.k, call.v, call.options)[0];
  });
}

flashjit_status flashjit_plan_create(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                     const flashjit_attention_options* options, const DLTensor* memory,
                                     flashjit_plan** plan) {
  return guarded([&] {
    require("plan", plan) = nullptr;
    Engine& made_by = engine_of(engine);
    *plan = new flashjit_plan(make_plan(made_by, PlannedCall(made_by, q, k, v, options), memory));
  });
}

flashjit_status flashjit_plan_update(flashjit_engine* engine, flashjit_plan* plan, const DLTensor* q, const DLTensor* k,
                                     const DLTensor* v, const flashjit_attention_options* options) {
  return guarded([&] {
    flashjit::BatchPlan& made = require("plan", plan).plan;
    Engine& made_by = engine_of(engine);
    const PlannedCall call(made_by, q, k, v, options);
    made_by.update(made, call.q, call.k, call.v, call.options);
  });
}

void flashjit_plan_destroy(flashjit_plan* plan) { delete plan; }

flashjit_status flashjit_get_plan_info(const flashjit_plan* plan, flashjit_plan_info* info) {
  return guarded([&] { flashjit::runtime::write_struct(info_of(require("plan", plan)), require("info", info)); });
}

flashjit_status flashjit_block_mask_dims(const flashjit_mask_shape* shape, int64_t dims[FLASHJIT_BLOCK_MASK_RANK]) {
  return guarded([&] {
    const flashjit::Dims sizes = flashjit::block_mask_dims(to_shape(require("shape", shape)));
    std::copy(sizes.begin(), sizes.end(), &require("dims", dims));
  });
}

flashjit_status flashjit_block_mask(flashjit_engine* engine, const flashjit_attention_options* options,
                                    const flashjit_mask_shape* shape, const DLTensor* into) {
  return guarded([&] { block_mask(engine_of(engine), options, shape, into); });
}

flashjit_status flashjit_merge(flashjit_engine* engine, const flashjit_partial* parts, size_t part_count,
                               const DLTensor* out, const DLTensor* lse, void* stream) {
  return guarded([&] { merge(engine_of(engine), parts, part_count, out, lse, stream); });
}

flashjit_status flashjit_append(flashjit_engine* engine, const DLTensor* k, const DLTensor* v, const DLTensor* k_cache,
                                const DLTensor* v_cache, const flashjit_append_options* options) {
  return guarded([&] { append(engine_of(engine), k, v, k_cache, v_cache, options); });
}

flashjit_status flashjit_dropout_mask(double probability, uint64_t seed, uint64_t offset,
                                      const flashjit_mask_shape* shape, uint8_t* kept) {
  return guarded([&] { dropout_mask({probability, seed, offset}, to_shape(require("shape", shape)), kept); });
}

flashjit_status flashjit_prepare(flashjit_engine* engine, const flashjit_problem* problem, int32_t device) {
  return guarded([&] { engine_of(engine).prepare(to_problem(problem), device); });
}

flashjit_status flashjit_measure_mma_ceiling(flashjit_engine* engine, double* tflops) {
  return guarded([&] {
    double& result = require("tflops", tflops);
    result = engine_of(engine).measure_mma_ceiling();
  });
}

}  // extern "C"
