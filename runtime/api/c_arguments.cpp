// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/c_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "generator/dtype.h"
#include "generator/functions.h"
#include "runtime/api/c_struct.h"
#include "runtime/support/path_list.h"

namespace flashjit::runtime {
namespace {

using generator::FunctionKind;
using generator::FunctionText;

void require_zero(const char* name, std::int32_t value) {
  if (value != 0) reject("{}: must be 0, was {}", name, value);
}

// The interface leaves room for further values.
bool to_bool(const char* name, std::int32_t value) {
  if (value != 0 && value != 1) reject("{}: must be 0 or 1, was {}", name, value);
  return value == 1;
}

Capture to_capture(const char* function, const flashjit_capture& given, MemoryKind kind) {
  const char* const name = given.name ? given.name : "";  // which is refused like every other wrong name
  const std::string label = fmt::format("{}: capture {}", function, name);
  require_zero((label + ": reserved").c_str(), given.reserved);
  if (given.tensor) return {name, to_tensor(label.c_str(), given.tensor, kind, generator::captured_dtypes().c_str())};
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
  const auto c = read_struct(given);
  const auto require_some = [&](const char* what, const void* pointer, std::size_t count) {
    if (!pointer && count > 0) reject("{}: {} must not be null, as there are {}", name, what, count);
  };
  require_some("text", c.text, c.text_size);
  require_some("captures", c.captures, c.capture_count);
  if (c.capture_count > generator::kMaxCaptures)  // before one is read
    reject("{}: must have at most {} captures, had {}", name, generator::kMaxCaptures, c.capture_count);
  std::vector<Capture> captures;
  for (std::size_t i = 0; i < c.capture_count; ++i) captures.push_back(to_capture(name, c.captures[i], kind));
  return Function(c.text ? std::string(c.text, c.text_size) : std::string(), std::move(captures));
}

void read_tensors(const flashjit_attention_options& c, MemoryKind kind, AttentionOptions& options) {
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
  read("q_scale", c.q_scale, "f32", options.q_scale);
  read("k_rotary", c.k_rotary, "f16 or bf16", options.k_rotary);
  read("out_scale", c.out_scale, "f32", options.out_scale);
}

bool is_none(DLDataType given) { return given.code == 0 && given.bits == 0 && given.lanes == 0; }

// What only calls with q of e4m3 have.
void read_products(const flashjit_attention_options& c, AttentionOptions& options) {
  if (to_bool("fast_sums", c.fast_sums)) options.accumulate = Accumulate::fast;
  if (is_none(c.out_dtype)) return;
  options.out_dtype = to_dtype(c.out_dtype);
  if (!options.out_dtype)
    reject("out_dtype: must be f16, bf16 or e4m3, or all 0 for bf16, was {}", to_string(c.out_dtype));
}

const FunctionText* bias_function(DLDataType given) {
  if (is_none(given)) return nullptr;
  const auto dtype = to_dtype(given);
  const auto known = generator::library_dtypes(FunctionKind::bias);
  if (!dtype || std::find(known.begin(), known.end(), *dtype) == known.end())
    reject("bias: must be f16, bf16 or f32, or all 0 for none, was {}", to_string(given));
  return &generator::library_function(FunctionKind::bias, *dtype);
}

// Of a feature whose tensor has one dtype only.
const FunctionText* flagged_function(FunctionKind kind, std::int32_t flag) {
  if (!to_bool(generator::word_of(kind), flag)) return nullptr;
  return &generator::library_function(kind, generator::library_dtypes(kind).front());
}

template <typename Function>
const FunctionText* users_function(const char* name, const flashjit_function* given) {
  return given ? to_function<Function>(name, *given, MemoryKind::any).source() : nullptr;
}

}  // namespace

std::string_view require_short(const char* name, std::string_view spelling) {
  constexpr std::size_t kLongest = 200;
  if (spelling.size() <= kLongest) return spelling;
  reject("{}: must have at most {} characters, had {}", name, kLongest, spelling.size());
}

EngineOptions to_engine_options(const flashjit_engine_options* given) {
  auto options = EngineOptions::from_environment();
  if (!given) return options;
  const auto c = read_struct(*given);
  if (c.policy) options.policy = parse_policy(c.policy);
  if (c.cache_directory) options.cache_directory = c.cache_directory;
  if (c.bundles) options.bundles = split_paths(c.bundles);
  if (c.tuning) options.tuning = parse_tuning_policy(c.tuning);
  if (c.emulate) options.emulate = c.emulate;
  if (c.nvrtc_path) options.nvrtc_path = c.nvrtc_path;
  return options;
}

AttentionOptions to_attention_options(const flashjit_attention_options* given, MemoryKind kind) {
  AttentionOptions options;
  if (!given) return options;
  const auto c = read_struct(*given);
  options.causal = to_bool("causal", c.causal);
  if (to_bool("has_softmax_scale", c.has_softmax_scale)) options.softmax_scale = c.softmax_scale;
  options.stream = static_cast<Stream>(c.stream);
  if (c.variant) options.variant = parse_variant(require_short("variant", c.variant));
  if (c.window) options.window = {c.window->left, c.window->right};
  options.chunk = c.chunk;
  options.softcap = c.softcap;
  options.dropout = {c.dropout, c.dropout_seed, c.dropout_offset};
  options.max_seqlen_q = c.max_seqlen_q;
  options.max_seqlen_kv = c.max_seqlen_kv;
  require_zero("reserved", c.reserved);
  read_tensors(c, kind, options);
  if (c.score) options.score = to_function<Score>("score", *c.score, kind);
  if (c.mask) options.mask = to_function<Mask>("mask", *c.mask, kind);
  if (c.plan) options.plan = &c.plan->plan;
  options.fixed_split_size = c.fixed_split_size;
  read_products(c, options);
  return options;
}

AppendOptions to_append_options(const flashjit_append_options* given, MemoryKind kind) {
  const auto c = read_struct(require("options", given));
  AppendOptions options;
  const auto set = [kind](std::optional<Tensor>& option, const char* name, const DLTensor* tensor,
                          const char* dtypes = "i32") {
    if (tensor) option = to_tensor(name, tensor, kind, dtypes);
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
  set(options.k_rotary, "k_rotary", c.k_rotary, kRowDTypes);
  set(options.k_rotary_cache, "k_rotary_cache", c.k_rotary_cache, kRowDTypes);
  options.rotary_interleaved = to_bool("rotary_interleaved", c.rotary_interleaved);
  require_zero("reserved", c.reserved);
  options.stream = static_cast<Stream>(c.stream);
  return options;
}

DType format_of_bytes(const flashjit_quantize_options* given) {
  if (!given) return DType::e4m3;
  const auto c = read_struct(*given);
  require_zero("reserved", c.reserved);
  return to_bool("bytes_are_e5m2", c.bytes_are_e5m2) ? DType::e5m2 : DType::e4m3;
}

QuantizeOptions to_quantize_options(const flashjit_quantize_options* given, MemoryKind kind) {
  QuantizeOptions options;
  if (!given) return options;
  const auto c = read_struct(*given);
  constexpr ScaleOf kScalesOf[] = {ScaleOf::head, ScaleOf::tensor, ScaleOf::block};
  if (c.scale_of < 0 || c.scale_of >= static_cast<int>(std::size(kScalesOf)))
    reject("scale_of: must be a flashjit_scale_of, was {}", c.scale_of);
  options.scale_of = kScalesOf[c.scale_of];
  options.scale_is_given = to_bool("scale_is_given", c.scale_is_given);
  options.block_size = c.block_size;
  if (to_bool("rotates", c.rotates)) options.rotation_seed = c.rotation_seed;
  if (!options.rotation_seed && c.rotation_seed != 0)
    reject("rotation_seed: must be 0 without rotates, was {}", c.rotation_seed);
  options.rotary_interleaved = to_bool("rotary_interleaved", c.rotary_interleaved);
  constexpr const char* kOfTables = "f16, bf16 or f32";
  if (c.rotary_cos) options.rotary_cos = to_tensor("rotary_cos", c.rotary_cos, kind, kOfTables);
  if (c.rotary_sin) options.rotary_sin = to_tensor("rotary_sin", c.rotary_sin, kind, kOfTables);
  if (c.positions) options.positions = to_tensor("positions", c.positions, kind, "i32 or i64");
  options.stream = static_cast<Stream>(c.stream);
  return options;
}

bool is_deterministic(const flashjit_gradients& given) {
  require_zero("reserved", given.reserved);
  return to_bool("deterministic", given.deterministic);
}

Problem to_problem(const flashjit_problem* given) {
  const auto c = read_struct(require("problem", given));
  const auto dtype = to_dtype(c.dtype);
  if (!dtype) reject("dtype: must be f16 or bf16, was {}", to_string(c.dtype));
  require_zero("reserved", c.reserved);
  Problem problem{.dtype = *dtype,
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
                  .e4m3_queries = to_bool("e4m3_queries", c.e4m3_queries),
                  .fast_sums = to_bool("fast_sums", c.fast_sums),
                  .block_scales = to_bool("block_scales", c.block_scales),
                  .k_rotary = to_bool("k_rotary", c.k_rotary),
                  .latent = to_bool("latent", c.latent),
                  .values_transposed = to_bool("values_transposed", c.values_transposed),
                  .out_e4m3 = to_bool("out_e4m3", c.out_e4m3),
                  .e5m2 = to_bool("e5m2", c.e5m2),
                  .bias = bias_function(c.bias),
                  .boolean_mask = flagged_function(FunctionKind::boolean_mask, c.boolean_mask),
                  .documents = flagged_function(FunctionKind::documents, c.documents),
                  .tree = flagged_function(FunctionKind::tree, c.tree),
                  .score = users_function<Score>("score", c.score),
                  .mask = users_function<Mask>("mask", c.mask),
                  .dropout_mask = flagged_function(FunctionKind::dropout_mask, c.dropout_mask)};
  problem.causal = problem.causal && !problem.prefix;  // as masks_of has it for calls
  if (problem.block_mask && !problem.boolean_mask && !problem.documents && !problem.tree && !problem.mask)
    reject("block_mask: must not be given without boolean_mask, documents, tree or mask, which it is made of");
  if (problem.block_mask && problem.ragged)  // as calls are refused
    reject("block_mask: must not be given for a batch whose sequences are not equally long");
  return problem;
}

BackwardProblem to_backward_problem(const flashjit_problem* given, const flashjit_gradient_kinds* kinds) {
  BackwardProblem problem{.attention = to_problem(given)};
  if (!kinds) return problem;
  const auto c = read_struct(*kinds);
  require_zero("reserved", c.reserved);
  problem.f32 = to_bool("f32", c.f32);
  problem.slopes = to_bool("dslopes", c.dslopes);
  problem.bias = to_bool("dbias", c.dbias);
  problem.sinks = to_bool("dsinks", c.dsinks);
  problem.deterministic = to_bool("deterministic", c.deterministic);
  return problem;
}

CallShape to_shape(const flashjit_mask_shape& given) {
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

}  // namespace flashjit::runtime
