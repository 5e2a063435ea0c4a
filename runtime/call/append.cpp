// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/append.h"

#include <algorithm>
#include <utility>

#include "flashjit/error.h"
#include "generator/arguments.h"
#include "generator/dtype.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/ragged.h"
#include "runtime/call/rotary.h"
#include "runtime/call/scales.h"
#include "runtime/support/ceil_quotient.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

using Option = std::pair<const char*, const std::optional<Tensor>*>;

void require_none(std::initializer_list<Option> options, const char* why) {
  for (const auto& [name, tensor] : options)
    if (*tensor) reject("{}: must not be given {}", name, why);
}

void check_choice(const AppendOptions& opts) {
  if (opts.slots) {
    require_none({{"seqused_kv", &opts.seqused_kv},
                  {"cu_seqlens", &opts.cu_seqlens},
                  {"page_table", &opts.page_table},
                  {"batch_indices_kv", &opts.batch_indices_kv},
                  {"leftpad_kv", &opts.leftpad_kv}},
                 "beside slots, which say where tokens go");
  } else if (!opts.seqused_kv) {
    reject("seqused_kv: must be given without slots, was not");
  }
  if (opts.page_table) require_none({{"leftpad_kv", &opts.leftpad_kv}}, "beside page_table");
  check_choice(GivenRotary(opts));
  if (!opts.rotary_cos) require_none({{"q", &opts.q}, {"q_out", &opts.q_out}}, "without rotary_cos");
  if (opts.rotary_cos && opts.slots && !opts.positions)
    reject("positions: must be given beside slots with rotary_cos, was not");
  if (opts.q.has_value() != opts.q_out.has_value())
    reject("{}: must be given beside {}, was not", opts.q ? "q_out" : "q", opts.q ? "q" : "q_out");
  if (opts.k_rotary.has_value() != opts.k_rotary_cache.has_value())
    reject("{}: must be given beside {}, was not", opts.k_rotary ? "k_rotary_cache" : "k_rotary",
           opts.k_rotary ? "k_rotary" : "k_rotary_cache");
}

// A tensor of tokens, with a dimension of batches.
Tensor of_tokens(const char* name, const Tensor& tensor, const AppendOptions& opts) {
  if (tensor.shape.size() != kRank - 1 || tensor.strides.size() != kRank - 1) return tensor;
  if (!opts.slots && !opts.cu_seqlens) reject("{}: rank must be 4 without slots and cu_seqlens, was 3", name);
  return with_batch(tensor);
}

// Of the same dtype as k, and in these dimensions of the same size as another.
void check_rows_like(const char* name, const Tensor& tensor, DType dtype, std::initializer_list<Dim> dims,
                     const char* like, const Tensor& other) {
  if (tensor.dtype != dtype)
    reject("{}: dtype must be {} like that of k, was {}", name, to_string(dtype), to_string(tensor.dtype));
  check_shape(name, tensor, kRowsRules);
  for (const Dim dim : dims) require_size(name, tensor, kRowsRules, dim, other.shape[dim], like);
}

void check_head_dim_of_rows(const char* name, const Tensor& tensor) {
  const std::int64_t head_dim = tensor.shape[head_dim_dim];
  if (head_dim == 0 || head_dim % kStrideStep != 0)
    reject("{}: head_dim must be a multiple of {}, was {}", name, kStrideStep, head_dim);
}

void check_rotary_rows(const AppendCall& call) {
  const Tensor &k = call.k, &cache = *call.opts.k_rotary_cache;
  check_rows_like("k_rotary", call.k_rotary, k.dtype, {batch_dim, seqlen_dim, heads_dim}, "k", k);
  check_rows_like("k_rotary_cache", cache, k.dtype, {batch_dim, seqlen_dim, heads_dim}, "k_cache", call.k_cache);
  check_rows_like("k_rotary_cache", cache, k.dtype, {head_dim_dim}, "k_rotary", call.k_rotary);
  check_head_dim_of_rows("k_rotary", call.k_rotary);
}

void check_one_cache(const AppendCall& call) {
  const auto& [k_scale, v_scale] = call.scales();
  if (!same_view(call.v, call.k)) reject("v: must be k where v_cache is k_cache, was another tensor");
  if (k_scale && !same_view(*v_scale, *k_scale))
    reject("v_scale: must be k_scale where v_cache is k_cache, was another tensor");
}

void check_all_rows(const AppendCall& call) {
  const Tensor& k = call.k;
  if (!generator::has_kernels(k.dtype))
    reject("k: dtype must be {}, was {}", generator::kernel_dtypes(), to_string(k.dtype));
  check_rows_like("k", k, k.dtype, {}, "k", k);
  check_rows_like("v", call.v, k.dtype, {batch_dim, seqlen_dim, heads_dim}, "k", k);
  const DType cached = call.k_cache.dtype;
  if (cached != k.dtype && !generator::is_of_8_bits(cached))
    reject("k_cache: dtype must be {} like that of k, e4m3 or e5m2, was {}", to_string(k.dtype), to_string(cached));
  if (call.v_cache.dtype != cached)
    reject("v_cache: dtype must be {} like that of k_cache, was {}", to_string(cached), to_string(call.v_cache.dtype));
  check_rows_like("k_cache", call.k_cache, cached, {heads_dim, head_dim_dim}, "k", k);
  check_rows_like("v_cache", call.v_cache, cached, {batch_dim, seqlen_dim}, "k_cache", call.k_cache);
  check_rows_like("v_cache", call.v_cache, cached, {heads_dim, head_dim_dim}, "v", call.v);
  check_scales(call.scales(), "k_cache", call.k_cache);
  check_head_dim_of_rows("k", k);
  check_head_dim_of_rows("v", call.v);
  if (call.has_one_cache()) check_one_cache(call);
  if (call.opts.k_rotary) check_rotary_rows(call);
  if (!call.opts.q) return;
  check_rows_like("q", call.q, k.dtype, {batch_dim, seqlen_dim}, "k", k);
  check_rows_like("q", call.q, k.dtype, {head_dim_dim}, call.opts.k_rotary ? "k_rotary" : "k", call.turning_keys());
  check_rows_like("q_out", call.q_out, k.dtype, {batch_dim, seqlen_dim, heads_dim, head_dim_dim}, "q", call.q);
}

void add_sequences(AppendCall& call) {
  const AppendOptions& opts = call.opts;
  call.batch = call.k.shape[batch_dim];
  if (opts.cu_seqlens) {
    if (opts.cu_seqlens->shape.size() == 1) call.batch = std::max<std::int64_t>(opts.cu_seqlens->shape[0] - 1, 0);
    if (call.k.shape[batch_dim] != 1)
      reject("k: batch must be 1, or not be there, beside cu_seqlens, was {}", call.k.shape[batch_dim]);
    add_numbers(call.operands, "cu_seqlens", opts.cu_seqlens, call.batch + 1, "one more than there are sequences",
                false);
  }
  constexpr const char* kOfSequences = "one for each sequence";
  add_numbers(call.operands, "seqused_kv", opts.seqused_kv, call.batch, kOfSequences, false);
  add_numbers(call.operands, "batch_indices_kv", opts.batch_indices_kv, call.batch, kOfSequences, false);
  add_numbers(call.operands, "leftpad_kv", opts.leftpad_kv, call.batch, kOfSequences, false);
  const char* const like = opts.cu_seqlens ? "cu_seqlens" : "k";
  if (!opts.page_table) {
    if (!opts.batch_indices_kv) require_size("k_cache", call.k_cache, kRowsRules, batch_dim, call.batch, like);
    return;
  }
  const Tensor& table = *opts.page_table;
  if (table.dtype != DType::i32) reject("page_table: dtype must be i32, was {}", to_string(table.dtype));
  check_shape("page_table", table, kPageTableRules);
  if (!opts.batch_indices_kv) require_size("page_table", table, kPageTableRules, 0, call.batch, like);
  add_operand(call.operands, "page_table", table, Operand::Role::captured_packed, false);
}

// --- As a launch -----------------------------------------------------------------------------------------------------

const int* elements_of(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<const int*>(tensor->data) : nullptr;
}

generator::AppendedRows appended_rows(const Tensor& from, const Tensor& to, std::int64_t rotary_half, bool to_cache) {
  return {static_cast<const char*>(from.data),
          static_cast<char*>(to.data),
          row_strides(from),
          row_strides(to),
          static_cast<int>(from.shape[heads_dim]),
          static_cast<int>(from.shape[head_dim_dim] / kStrideStep),
          static_cast<int>(rotary_half / kStrideStep),
          to_cache};
}

void set_sequences(generator::AppendArguments& arguments, const AppendCall& call) {
  const AppendOptions& opts = call.opts;
  arguments.offsets = elements_of(opts.cu_seqlens);
  arguments.used = elements_of(opts.seqused_kv);
  arguments.padding = elements_of(opts.leftpad_kv);
  arguments.entries = elements_of(opts.batch_indices_kv);
  arguments.batch = static_cast<int>(call.batch);
  arguments.table = elements_of(opts.page_table);
  if (!opts.page_table) return;
  arguments.table_stride = opts.page_table->strides[0];
  arguments.table_rows = static_cast<int>(opts.page_table->shape[0]);
  arguments.table_entries = static_cast<int>(opts.page_table->shape[1]);
}

generator::AppendArguments append_arguments(const AppendCall& call) {
  const AppendOptions& opts = call.opts;
  const GivenRotary rotary(opts);
  generator::AppendArguments arguments{};
  arguments.rows[0] = appended_rows(call.k, call.k_cache, opts.k_rotary ? 0 : rotary.pairs(), true);
  if (!call.has_one_cache()) arguments.rows[1] = appended_rows(call.v, call.v_cache, 0, true);
  if (opts.k_rotary) arguments.rows[2] = appended_rows(call.k_rotary, *opts.k_rotary_cache, rotary.pairs(), true);
  if (opts.q) arguments.rows[3] = appended_rows(call.q, call.q_out, rotary.pairs(), false);
  arguments.new_rows = static_cast<int>(call.k.shape[seqlen_dim]);
  const std::int64_t page_size = call.k_cache.shape[seqlen_dim];
  arguments.pages = page_size > 0 ? static_cast<int>(call.k_cache.shape[batch_dim]) : 0;
  arguments.page_size = static_cast<int>(std::max<std::int64_t>(page_size, 1));
  arguments.slots = numbers_of(opts.slots);
  set_sequences(arguments, call);
  arguments.rotary = rotary_tables(rotary);
  arguments.row_lanes_log2 = row_lanes_log2(std::max(arguments.rows[0].chunks, arguments.rows[1].chunks));
  const int rows_of_block = generator::kAppendThreads >> arguments.row_lanes_log2;
  arguments.blocks_of_token = static_cast<int>(ceil_quotient(call.heads_of_token(), rows_of_block));
  return arguments;
}

generator::AppendedScales scales_of(const AppendCall& call, const std::optional<Tensor>& scale) {
  const generator::ScaleTensor of = scale_tensor(in_one_form(scale, call.k_cache));
  return {const_cast<char*>(of.first), of.strides, call.scales().of_tokens()};
}

// Throws Error(invalid_argument).
generator::AppendKernel wanted_kernel(const AppendProblem& problem) {
  if (problem.dtype > DType::bf16) reject("dtype: must be f16 or bf16, was {}", to_string(problem.dtype));
  if (problem.rotary_interleaved && !problem.rotary)
    reject("rotary_interleaved: must be false without rotary, was true");
  const DType cache = problem.cache_dtype.value_or(problem.dtype);
  if (cache != problem.dtype && !generator::is_of_8_bits(cache))
    reject("cache_dtype: must be {} like dtype, e4m3 or e5m2, was {}", to_string(problem.dtype), to_string(cache));
  if (!problem.rotary) return {problem.dtype, generator::Rotary::none, problem.dtype, cache};
  if (*problem.rotary > DType::f32) reject("rotary: must be f16, bf16 or f32, was {}", to_string(*problem.rotary));
  const auto kind = problem.rotary_interleaved ? generator::Rotary::neighbours : generator::Rotary::halves;
  return {problem.dtype, kind, *problem.rotary, cache};
}

// must_be: of the kernel's dtype.
void require_conversion(fmt::format_string<const char*> must_be, const generator::AppendKernel& wanted,
                        const Architecture& architecture) {
  if (wanted.cache == wanted.dtype || generator::converts_to_8_bits(architecture)) return;
  throw Error(ErrorCode::unsupported, fmt::format("{} on {}, which has no instruction for {}, was {}",
                                                  fmt::format(must_be, to_string(wanted.dtype)), architecture.name,
                                                  to_string(wanted.cache), to_string(wanted.cache)));
}

const generator::PlainKernel& rendered(const generator::AppendKernel& wanted, const Architecture& architecture,
                                       PlainKernels& kernels) {
  return kernels.get(fmt::format("append {} {} {} {} {}", to_string(wanted.dtype), static_cast<int>(wanted.rotary),
                                 to_string(wanted.table), to_string(wanted.cache), architecture.name),
                     [&](const auto& templates) { return generator::render_append(wanted, architecture, templates); });
}

}  // namespace

AppendCall::AppendCall(const Tensor& of_k, const Tensor& of_v, const Tensor& of_k_cache, const Tensor& of_v_cache,
                       const AppendOptions& of)
    : k_cache(of_k_cache), v_cache(of_v_cache), opts(of) {
  check_choice(opts);
  k = of_tokens("k", of_k, opts), v = of_tokens("v", of_v, opts);
  if (opts.q) q = of_tokens("q", *opts.q, opts), q_out = of_tokens("q_out", *opts.q_out, opts);
  if (opts.k_rotary) k_rotary = of_tokens("k_rotary", *opts.k_rotary, opts);
  check_all_rows(*this);
  add_operand(operands, "k", k, Operand::Role::rows, false);
  add_operand(operands, "v", v, Operand::Role::rows, false);
  if (opts.k_rotary) add_operand(operands, "k_rotary", k_rotary, Operand::Role::rows, false);
  constexpr const char* kOfTokens = "one for each token of k";
  add_numbers(operands, "slots", opts.slots, tokens(), kOfTokens, true);
  if (!opts.slots) add_sequences(*this);
  add_rotary(operands, GivenRotary(opts), turning_keys().shape[head_dim_dim], tokens(), kOfTokens);
  if (opts.q && !same_view(q, q_out)) add_operand(operands, "q", q, Operand::Role::rows, false);
  if (!scales().of_tokens()) add_scales(operands, scales(), false);
  add_operand(operands, "k_cache", k_cache, Operand::Role::rows, true);
  if (!has_one_cache()) add_operand(operands, "v_cache", v_cache, Operand::Role::rows, true);
  const std::optional<Tensor> none;
  if (scales().of_tokens()) add_scales(operands, {opts.k_scale, has_one_cache() ? none : opts.v_scale}, true);
  if (opts.k_rotary) add_operand(operands, "k_rotary_cache", *opts.k_rotary_cache, Operand::Role::rows, true);
  if (opts.q) add_operand(operands, "q_out", q_out, Operand::Role::rows, true);
}

bool AppendCall::has_one_cache() const noexcept { return opts.k_rotary && same_view(k_cache, v_cache); }

std::int64_t AppendCall::heads_of_token() const noexcept {
  const int of_keys = 1 + (has_one_cache() ? 0 : 1) + (opts.k_rotary ? 1 : 0);
  return of_keys * k.shape[heads_dim] + (opts.q ? q.shape[heads_dim] : 0);
}

std::int64_t AppendCall::rows_of_sequence() const noexcept {
  return key_rows(k_cache, opts.page_table ? &*opts.page_table : nullptr);
}

const generator::PlainKernel& append_kernel(const AppendProblem& problem, const Architecture& architecture,
                                            PlainKernels& kernels) {
  const generator::AppendKernel wanted = wanted_kernel(problem);
  require_conversion("cache_dtype: must be {} like dtype", wanted, architecture);
  return rendered(wanted, architecture, kernels);
}

PlainLaunch make_append_launch(const AppendCall& call, const Architecture& architecture, PlainKernels& kernels) {
  const generator::AppendArguments arguments = append_arguments(call);
  const GivenRotary rotary(call.opts);
  std::int64_t blocks = 0;
  if (__builtin_mul_overflow(call.tokens(), arguments.blocks_of_token, &blocks)) blocks = INT64_MAX;
  const generator::AppendKernel wanted{call.k.dtype, rotary.kind(), rotary.dtype(call.k.dtype), call.k_cache.dtype};
  require_conversion("k_cache: dtype must be {} like that of k", wanted, architecture);
  const generator::PlainKernel& kernel = rendered(wanted, architecture, kernels);
  PlainLaunch made = plain_launch(kernel, blocks, "k");
  if (wanted.cache != wanted.dtype)
    made.launch.write_argument(
        0, generator::AppendScaledArguments{arguments,
                                            {scales_of(call, call.opts.k_scale), scales_of(call, call.opts.v_scale)}});
  else
    made.launch.write_argument(0, arguments);
  return made;
}

}  // namespace flashjit::runtime
