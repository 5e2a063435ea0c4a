// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/validate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "generator/arguments.h"
#include "generator/dtype.h"
#include "generator/family.h"
#include "generator/features.h"
#include "generator/plan.h"
#include "generator/source.h"
#include "generator/variant_space.h"
#include "runtime/call/plan.h"
#include "runtime/call/scales.h"
#include "runtime/call/scores.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

using generator::is_of_8_bits;

constexpr std::int64_t kMaxTiles = (std::int64_t{1} << 31) - 1;
constexpr int kSmallestBlockQ = 16;
constexpr int kHeadDimStep = 8;

void check_dtype(const char* name, const Tensor& tensor, DType wanted) {
  if (tensor.dtype == wanted) return;
  reject("{}: dtype must be {} like that of q, was {}", name, to_string(wanted), to_string(tensor.dtype));
}

void check_dtypes(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!generator::has_kernels(q.dtype) && !is_of_8_bits(q.dtype))
    reject("q: dtype must be f16, bf16, e4m3 or e5m2, was {}", to_string(q.dtype));
  if (is_of_8_bits(q.dtype)) check_dtype("k", k, q.dtype);
  if (!is_of_8_bits(k.dtype)) {
    if (k.dtype != q.dtype)
      reject("k: dtype must be {} like that of q, e4m3 or e5m2, was {}", to_string(q.dtype), to_string(k.dtype));
    check_dtype("v", v, q.dtype);
  } else if (v.dtype != k.dtype) {
    reject("v: dtype must be {} like that of k, was {}", to_string(k.dtype), to_string(v.dtype));
  }
}

// Beside k_rotary e4m3 is what large heads may be of, too.
void check_head_dim(const char* name, const Tensor& tensor, int largest, DType q_dtype, DType k_dtype,
                    bool has_k_rotary) {
  const std::int64_t head_dim = tensor.shape[head_dim_dim];
  const bool is_q_of_8_bits = is_of_8_bits(q_dtype), is_k_of_8_bits = is_of_8_bits(k_dtype);
  const int step = is_q_of_8_bits ? generator::kHeadDimStepOfE4m3 : kHeadDimStep;
  if (is_k_of_8_bits && !has_k_rotary) largest = generator::kMostUsualHeadDim;
  if (head_dim < step || head_dim > largest || head_dim % step != 0)
    reject("{}: head_dim must be a multiple of {} from {} to {}{}, was {}", name, step, step, largest,
           is_q_of_8_bits                    ? fmt::format(" beside q of {}", to_string(q_dtype))
           : is_k_of_8_bits && !has_k_rotary ? fmt::format(" beside k of {}", to_string(k_dtype))
                                             : "",
           head_dim);
}

// Keys in two tensors: rows alike, columns one behind the other.
void check_k_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_rotary) {
  if (is_of_8_bits(q.dtype)) reject("k_rotary: must not be given beside q of {}", to_string(q.dtype));
  check_dtype("k_rotary", k_rotary, q.dtype);
  check_shape("k_rotary", k_rotary, kRowsRules);
  for (const Dim dim : {batch_dim, seqlen_dim, heads_dim})
    require_size("k_rotary", k_rotary, kRowsRules, dim, k.shape[dim], "k");
  const std::int64_t columns = v.shape[head_dim_dim], rotary = k_rotary.shape[head_dim_dim];
  if (rotary < kHeadDimStep || rotary % kHeadDimStep != 0)
    reject("k_rotary: head_dim must be a multiple of {}, was {}", kHeadDimStep, rotary);
  if (columns % generator::kHeadDimStepOfE4m3 != 0)
    reject("v: head_dim must be a multiple of {} beside k_rotary, was {}", generator::kHeadDimStepOfE4m3, columns);
  require_size("k", k, kRowsRules, head_dim_dim, columns, "v");
  if (q.shape[head_dim_dim] != columns + rotary)
    reject("q: head_dim must be {}, the {} of k and the {} of k_rotary, was {}", columns + rotary, columns, rotary,
           q.shape[head_dim_dim]);
  if (columns + rotary <= generator::kMostUsualHeadDim)
    reject("q: head_dim must be above {} beside k_rotary, was {}", generator::kMostUsualHeadDim, columns + rotary);
}

// Whether v comes transposed, where that may be.
bool has_transposed_values(const Tensor& q, const Tensor& v, bool ragged) {
  if (!is_of_8_bits(q.dtype) || !comes_transposed(v)) return false;
  if (ragged)
    reject(
        "v: the last dimension must be contiguous (stride 1) for a batch whose sequences are not equally long, its "
        "stride was {}",
        v.strides[head_dim_dim]);
  return true;
}

void check_heads(const ForwardCall& call) {
  if (call.num_heads_q == 0) return;
  if (call.num_heads_kv == 0 || call.num_heads_q % call.num_heads_kv != 0) {
    reject("k: num_heads must divide the {} of q, was {}", call.num_heads_q, call.num_heads_kv);
  }
}

void check_tiles(const ForwardCall& call) {
  std::int64_t tiles = (call.q->shape[seqlen_dim] + kSmallestBlockQ - 1) / kSmallestBlockQ;
  if (__builtin_mul_overflow(tiles, call.q->shape[batch_dim], &tiles) ||
      __builtin_mul_overflow(tiles + (call.ragged.cu_seqlens_q ? call.batch : 0), call.num_heads_q, &tiles) ||
      tiles > kMaxTiles) {
    reject("q: batch * num_heads * ceil(seqlen / {}) must be at most {}, had shape {}", kSmallestBlockQ, kMaxTiles,
           to_string(call.q->shape));
  }
}

void add_input(ForwardCall& call, const char* name, const Tensor& tensor, Operand::Role role = Operand::Role::rows) {
  add_operand(call.operands, name, tensor, role, false);
}
void add_output(ForwardCall& call, const char* name, const Tensor& tensor, Operand::Role role) {
  add_operand(call.operands, name, tensor, role, true);
}

void require_f32(const char* name, const Tensor& tensor) {
  if (tensor.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(tensor.dtype));
}

// What says how many sequences there are.
const char* batch_source(const ForwardCall& call) { return call.ragged.cu_seqlens_q ? "cu_seqlens_q" : "q"; }

// Null where the call has none.
const Tensor* add_of_heads(ForwardCall& call, const char* name, const std::optional<Tensor>& values) {
  if (!values) return nullptr;
  require_f32(name, *values);
  if (values->shape.size() != 1 && values->shape.size() != 2) {
    reject("{}: must be [num_heads] or [batch, num_heads], had rank {} with shape {}", name, values->shape.size(),
           to_string(values->shape));
  }
  const Rules rules = rules_of(Operand::Role::of_heads, *values);
  check_shape(name, *values, rules);
  if (rules.rank > 1) require_size(name, *values, rules, 0, call.batch, batch_source(call));
  require_size(name, *values, rules, rules.rank - 1, call.num_heads_q, "q");
  add_input(call, name, *values, Operand::Role::of_heads);
  return &*values;
}

void add_captures(ForwardCall& call, const Function& function) {
  const std::vector<std::string>& labels = function.source()->labels;
  for (std::size_t i = 0; i < function.captures().size(); ++i) {
    const auto* tensor = std::get_if<Tensor>(&function.captures()[i].value);
    if (!tensor) continue;
    check_shape(labels[i].c_str(), *tensor, captured_rules(*tensor, false));
    add_input(call, labels[i].c_str(), *tensor, Operand::Role::captured);
  }
}

void check_of_batch(const char* name, const Tensor& values) {
  if (values.dtype != DType::i32) reject("{}: dtype must be i32, was {}", name, to_string(values.dtype));
  check_shape(name, values, kOfBatchRules);
}

// i32 [batch]; null: none.
const Tensor* add_of_batch(ForwardCall& call, const char* name, const std::optional<Tensor>& values) {
  if (!values) return nullptr;
  check_of_batch(name, *values);
  require_size(name, *values, kOfBatchRules, 0, call.batch, batch_source(call));
  add_input(call, name, *values, Operand::Role::of_batch);
  return &*values;
}

const Tensor* add_offsets(ForwardCall& call, const char* name, const std::optional<Tensor>& offsets) {
  if (offsets && !call.score && !call.mask) reject("{}: must not be given without score or mask, which see them", name);
  return add_of_batch(call, name, offsets);
}

// i32 [batch + 1]; null: none.
const Tensor* check_offsets_of_rows(const char* name, const std::optional<Tensor>& offsets, const char* rows_name,
                                    const Tensor& rows) {
  if (!offsets) return nullptr;
  if (offsets->shape.size() == 1 && offsets->shape[0] < 1)
    reject("{}: must have batch + 1 elements, had {}", name, offsets->shape[0]);
  check_of_batch(name, *offsets);
  if (rows.shape[batch_dim] != 1)
    reject("{}: batch must be 1, or not be there, beside {}, was {}", rows_name, name, rows.shape[batch_dim]);
  return &*offsets;
}

// i32 [batch, entries], and of entries of k that are pages; null: none.
const Tensor* check_page_table(const ForwardCall& call, const AttentionOptions& opts) {
  if (!opts.page_table) return nullptr;
  const Tensor& table = *opts.page_table;
  if (table.dtype != DType::i32) reject("page_table: dtype must be i32, was {}", to_string(table.dtype));
  check_shape("page_table", table, kPageTableRules);
  if (!opts.batch_indices_kv)
    require_size("page_table", table, kPageTableRules, 0, call.batch, batch_source(call));
  else if (call.batch > 0 && table.shape[0] == 0)
    reject("page_table: batch must be at least 1 beside batch_indices_kv, was 0");
  const Tensor& k = *call.k;
  if (k.shape[seqlen_dim] == 0) reject("k: page_size must be at least 1, was 0");
  if (k.shape[batch_dim] == 0 && key_rows(k, &table) > 0)
    reject("k: pages must be at least 1 beside page_table, was 0");
  if (key_rows(k, &table) > kMaxSize)
    reject("page_table: entries * page_size must be at most {}, was {} * {}", kMaxSize, table.shape[1],
           k.shape[seqlen_dim]);
  return &table;
}

std::int64_t longest(const char* name, std::int64_t bound, std::int64_t rows, bool ragged) {
  if (bound < 0) reject("{}: must be at least 0, was {}", name, bound);
  if (bound > 0 && !ragged) reject("{}: must not be given for a batch whose sequences are equally long", name);
  return bound == 0 ? rows : std::min(bound, rows);
}

std::int64_t mean(std::int64_t total, std::int64_t count) { return count == 0 ? 0 : (total + count - 1) / count; }

// How many sequences there are, and how long they may be.
void find_sequences(ForwardCall& call, const AttentionOptions& opts) {
  const Tensor &q = *call.q, &k = *call.k;
  Ragged& ragged = call.ragged;
  require_no_other_places(opts);
  ragged.cu_seqlens_q = check_offsets_of_rows("cu_seqlens_q", opts.cu_seqlens_q, "q", q);
  ragged.cu_seqlens_kv = check_offsets_of_rows("cu_seqlens_kv", opts.cu_seqlens_kv, "k", k);
  call.batch = ragged.cu_seqlens_q ? ragged.cu_seqlens_q->shape[0] - 1 : q.shape[batch_dim];
  if (ragged.cu_seqlens_kv && ragged.cu_seqlens_kv->shape[0] != call.batch + 1)
    reject("cu_seqlens_kv: must have {} elements, one more than {} has sequences, had {}", call.batch + 1,
           batch_source(call), ragged.cu_seqlens_kv->shape[0]);
  ragged.page_table = check_page_table(call, opts);
  if (!ragged.cu_seqlens_kv && !opts.batch_indices_kv && !ragged.page_table)
    require_size("k", k, kRowsRules, batch_dim, call.batch, batch_source(call));
  if (opts.batch_indices_kv && !ragged.page_table && call.batch > 0 && k.shape[batch_dim] == 0)
    reject("k: batch must be at least 1 beside batch_indices_kv, was 0");
  if (ragged.cu_seqlens_kv && opts.batch_indices_kv)
    reject("batch_indices_kv: must not be given beside cu_seqlens_kv, which says where keys lie");
  call.seqlen_q = longest("max_seqlen_q", opts.max_seqlen_q, q.shape[seqlen_dim], call.problem.ragged);
  call.seqlen_kv = longest("max_seqlen_kv", opts.max_seqlen_kv, key_rows(k, ragged.page_table), call.problem.ragged);
  call.usual_seqlen_q = ragged.cu_seqlens_q ? mean(q.shape[seqlen_dim], call.batch) : call.seqlen_q;
  call.usual_seqlen_kv = ragged.cu_seqlens_kv ? mean(k.shape[seqlen_dim], call.batch) : call.seqlen_kv;
}

void add_ragged(ForwardCall& call, const AttentionOptions& opts) {
  if (!call.problem.ragged) return;
  if (opts.block_mask) reject("block_mask: must not be given for a batch whose sequences are not equally long");
  Ragged& ragged = call.ragged;
  if (ragged.cu_seqlens_q) add_input(call, "cu_seqlens_q", *ragged.cu_seqlens_q, Operand::Role::of_batch);
  if (ragged.cu_seqlens_kv) add_input(call, "cu_seqlens_kv", *ragged.cu_seqlens_kv, Operand::Role::of_batch);
  ragged.seqused_q = add_of_batch(call, "seqused_q", opts.seqused_q);
  ragged.seqused_kv = add_of_batch(call, "seqused_kv", opts.seqused_kv);
  ragged.leftpad_kv = add_of_batch(call, "leftpad_kv", opts.leftpad_kv);
  ragged.batch_indices_kv = add_of_batch(call, "batch_indices_kv", opts.batch_indices_kv);
  if (ragged.page_table) add_input(call, "page_table", *ragged.page_table, Operand::Role::captured_packed);
}

// A dimension of a tensor that a feature is a function of.
struct WantedDim {
  const char* name;
  std::int64_t size;
  bool or_one = false;  // then 1 stands for all
  bool or_more = false;
};

// The tensor as it is called: what stands for all is repeated. Empty: none.
template <std::size_t kDims>
Tensor add_called(ForwardCall& call, const char* name, const std::optional<Tensor>& tensor,
                  const WantedDim (&dims)[kDims]) {
  if (!tensor) return {};
  check_shape(name, *tensor, {kCapturedDimNames, static_cast<int>(kDims), 1, size_of(tensor->dtype)});
  Tensor called = *tensor;
  for (int i = 0; i < static_cast<int>(kDims); ++i) {
    const WantedDim& wanted = dims[i];
    const std::int64_t size = tensor->shape[i];
    if (size == wanted.size || (wanted.or_more && size > wanted.size)) continue;
    if (!wanted.or_one || size != 1)
      reject("{}: {} must be {}{}, was {} with shape {}", name, wanted.name, wanted.size,
             wanted.or_one    ? ", or 1 for all"
             : wanted.or_more ? " or more"
                              : "",
             size, to_string(tensor->shape));
    called.shape[i] = wanted.size;
    called.strides[i] = 0;
  }
  add_input(call, name, *tensor, Operand::Role::captured_packed);
  return called;
}

const char* queries_name(const ForwardCall& call) { return call.problem.ragged ? "max_seqlen_q" : "seqlen_q"; }
const char* keys_name(const ForwardCall& call) { return call.problem.ragged ? "max_seqlen_kv" : "seqlen_kv"; }

void add_tensors_of_scores(ForwardCall& call, const AttentionOptions& opts) {
  const WantedDim batch{"batch", call.batch, true}, heads{"num_heads", call.num_heads_q, true};
  const WantedDim queries{queries_name(call), call.seqlen_q, true}, keys{keys_name(call), call.seqlen_kv};
  call.prefix = add_of_batch(call, "prefix", opts.prefix);
  call.bias = add_called(call, "bias", opts.bias, {batch, heads, queries, keys});
  call.boolean_mask = add_called(call, "boolean_mask", opts.boolean_mask, {batch, heads, queries, keys});
  call.documents = add_called(call, "documents", opts.documents, {batch, keys});
  if (opts.tree && call.seqlen_q > call.seqlen_kv)
    reject("tree: seqlen_q must be at most seqlen_kv, as its queries have the last keys, was {} with {} keys",
           call.seqlen_q, call.seqlen_kv);
  constexpr std::int64_t kWordBits = 64;
  const WantedDim words{"words", (call.seqlen_q + kWordBits - 1) / kWordBits, false, true};
  call.tree = add_called(call, "tree", opts.tree, {batch, {queries_name(call), call.seqlen_q}, words});
}

// Each for itself.
void add_head_scales(ForwardCall& call, const AttentionOptions& opts) {
  const auto add = [&](const char* name, const std::optional<Tensor>& scale, const char* rows_name, const Tensor& rows,
                       Tensor& form) {
    if (!scale) return;
    check_head_scale(name, *scale, rows_name, rows, call.batch, call.problem.ragged);
    add_input(call, name, *scale, Operand::Role::captured);
    form = head_scales_in_one_form(scale, rows);
  };
  add("q_scale", opts.q_scale, "q", *call.q, call.q_scale);
  add("k_scale", opts.k_scale, "k", *call.k, call.k_scale);
  add("v_scale", opts.v_scale, "v", *call.v, call.v_scale);
}

void add_out_scale(ForwardCall& call, const AttentionOptions& opts) {
  if (!opts.out_scale) return;
  const Tensor& scale = *opts.out_scale;
  require_f32("out_scale", scale);
  if (scale.shape != Dims{1}) reject("out_scale: must be [1], had shape {}", to_string(scale.shape));
  check_shape("out_scale", scale, captured_rules(scale, false));
  add_input(call, "out_scale", scale, Operand::Role::captured);
  call.out_scale = &scale;
}

void add_scales(ForwardCall& call, const AttentionOptions& opts) {
  if (call.problem.e4m3_queries) return add_head_scales(call, opts);
  const GivenScales scales{opts.k_scale, opts.v_scale};
  check_scales(scales, "k", *call.k);
  add_scales(call.operands, scales, false);
  call.k_scale = in_one_form(opts.k_scale, *call.k), call.v_scale = in_one_form(opts.v_scale, *call.k);
}

void add_dropout(ForwardCall& call, const AttentionOptions& opts) {
  call.dropout = opts.dropout;
  if (call.problem.e4m3_queries && (call.problem.dropout || opts.dropout_mask))
    reject("{}: must not be given beside q of {}", call.problem.dropout ? "dropout" : "dropout_mask",
           to_string(q_dtype(call.problem)));
  const WantedDim batch{"batch", call.batch, true}, heads{"num_heads", call.num_heads_q, true};
  const WantedDim queries{queries_name(call), call.seqlen_q, true}, keys{keys_name(call), call.seqlen_kv};
  call.dropout_mask = add_called(call, "dropout_mask", opts.dropout_mask, {batch, heads, queries, keys});
  if (!opts.dropout_state) return;
  if (opts.dropout_mask) reject("dropout_state: must not be given beside dropout_mask, which takes its place");
  if (opts.dropout_state->dtype != DType::i64)
    reject("dropout_state: dtype must be i64, was {}", to_string(opts.dropout_state->dtype));
  add_called(call, "dropout_state", opts.dropout_state, {WantedDim{"seed and offset", 2}});
  call.dropout_state = &*opts.dropout_state;
}

// A block mask of so many batch entries and heads, for the lengths of the call.
void check_block_mask(const ForwardCall& call, const char* name, const Tensor& mask) {
  const Dims wanted = block_mask_dims({call.batch, call.seqlen_q, call.seqlen_kv, call.num_heads_q, 1});
  if (mask.dtype != DType::i32) reject("{}: dtype must be i32, was {}", name, to_string(mask.dtype));
  check_shape(name, mask, {kCapturedDimNames, wanted.size(), 1, sizeof(std::int32_t)});
  for (int i = 0; i < wanted.size(); ++i) {
    const bool for_all = i < 2 && mask.shape[i] == 1;
    if (mask.shape[i] != wanted[i] && !for_all)
      reject("{}: must have the shape {} of Engine::block_mask for this call, batch and num_heads 1 for all, had {}",
             name, to_string(wanted), to_string(mask.shape));
  }
  if (std::find(mask.shape.begin(), mask.shape.end(), 0) != mask.shape.end()) return;  // whatever its strides
  constexpr std::int64_t kMaxWords = std::int64_t{1} << 32;                            // kernels count them in 32 bits
  const Dims packed = packed_strides(mask.shape);
  std::int64_t words = packed[1];
  for (int i = 0; i < 2 && mask.strides.size() == wanted.size(); ++i)
    if (mask.shape[i] > 1) words += (mask.shape[i] - 1) * std::min(mask.strides[i], kMaxWords);
  if (words > kMaxWords) reject("{}: must span at most {} words, spanned {}", name, kMaxWords, words);
  for (int i = 2; i < wanted.size(); ++i)
    if (mask.shape[i] > 1 && mask.strides.size() == wanted.size() && mask.strides[i] != packed[i])
      reject("{}: must be packed but for batch and num_heads, had strides {}", name, to_string(mask.strides));
}

void add_block_mask(ForwardCall& call, const AttentionOptions& opts) {
  if (!opts.block_mask) return;
  if (!call.problem.boolean_mask && !call.problem.documents && !call.problem.tree && !call.problem.mask)
    reject("block_mask: must not be given without boolean_mask, documents, tree or mask, which it is made of");
  check_block_mask(call, "block_mask", *opts.block_mask);
  add_input(call, "block_mask", *opts.block_mask, Operand::Role::captured_packed);
  call.block_mask = &*opts.block_mask;
}

void add_functions(ForwardCall& call, const AttentionOptions& opts) {
  if (opts.score) add_captures(call, *(call.score = &*opts.score));
  if (opts.mask) add_captures(call, *(call.mask = &*opts.mask));
  call.query_offsets = add_offsets(call, "query_offsets", opts.query_offsets);
  call.key_offsets = add_offsets(call, "key_offsets", opts.key_offsets);
}

void check_lse(const ForwardCall& call, const Tensor& lse) {
  require_f32("lse", lse);
  check_shape("lse", lse, kLseRules);
  require_size("lse", lse, kLseRules, 0, call.q->shape[batch_dim], "q");
  require_size("lse", lse, kLseRules, 1, call.num_heads_q, "q");
  require_size("lse", lse, kLseRules, 2, call.q->shape[seqlen_dim], "q");
}

// After all that the plan has to agree with.
void add_plan(ForwardCall& call, const AttentionOptions& opts) {
  call.variant = opts.variant ? &*opts.variant : nullptr;
  call.fixed_split = opts.fixed_split_size;
  if (call.fixed_split < 0) reject("fixed_split_size: must be at least 1, or 0 for none, was {}", call.fixed_split);
  if (call.fixed_split > 0 && call.problem.e4m3)
    reject("fixed_split_size: must be 0 where k and v are of {}, was {}", to_string(kv_dtype(call.problem)),
           call.fixed_split);
  if (call.fixed_split > 0 && call.variant)
    if (const std::string why = generator::why_not_invariant(*call.variant); !why.empty()) reject("{}", why);
  if (!opts.plan) return;
  call.plan = opts.plan;
  if (!call.variant) call.variant = &opts.plan->variant();
  check_plan(call, *opts.plan);
  // Where keys are split it has room for their partial results.
  add_operand(call.operands, "plan", opts.plan->memory(), Operand::Role::captured_packed,
              generator::splits_kv(*call.variant));
}

ForwardCall call_of_shape(const CallShape& shape) {
  ForwardCall call;
  call.batch = shape.batch;
  call.num_heads_q = shape.num_heads_q;
  call.seqlen_q = shape.seqlen_q;
  call.seqlen_kv = shape.seqlen_kv;
  return call;
}

}  // namespace

CallShape tuning_shape(const ForwardCall& call) noexcept {
  const std::int64_t keys = keys_of_query(call.masks, call.usual_seqlen_kv);
  return {call.batch, call.usual_seqlen_q, keys, call.num_heads_q, call.num_heads_kv};
}

// Whether each row of v is where that of k begins. Strides of dimensions of size 1 mean nothing.
bool is_first_columns(const Tensor& v, const Tensor& k) noexcept {
  const auto same_stride = [&](int dim) { return k.shape[dim] == 1 || v.strides[dim] == k.strides[dim]; };
  return k.data != nullptr && v.data == k.data && same_stride(batch_dim) && same_stride(seqlen_dim) &&
         same_stride(heads_dim);
}

ForwardCall validate_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  check_dtypes(q, k, v);
  require_e4m3_options(opts, q.dtype);
  check_shape("q", q, kRowsRules);
  check_shape("k", k, kRowsRules);
  check_shape("v", v, kRowsRules);
  const bool has_k_rotary = opts.k_rotary.has_value();
  check_head_dim("q", q, kLargestHeadDim, q.dtype, k.dtype, has_k_rotary);
  if (!has_k_rotary) require_size("k", k, kRowsRules, head_dim_dim, q.shape[head_dim_dim], "q");
  check_head_dim("v", v, kLargestHeadDimV, q.dtype, k.dtype, has_k_rotary);
  if (has_k_rotary) check_k_rotary(q, k, v, *opts.k_rotary);
  if (!is_ragged(opts)) require_size("k", k, kRowsRules, batch_dim, q.shape[batch_dim], "q");
  require_size("v", v, kRowsRules, batch_dim, k.shape[batch_dim], is_ragged(opts) ? "k" : "q");
  require_size("v", v, kRowsRules, seqlen_dim, k.shape[seqlen_dim], "k");
  require_size("v", v, kRowsRules, heads_dim, k.shape[heads_dim], "k");

  ForwardCall call;
  call.masks = masks_of(opts);
  call.problem = problem_of(q.dtype, static_cast<int>(q.shape[head_dim_dim]), static_cast<int>(v.shape[head_dim_dim]),
                            opts, call.masks, k.dtype);
  call.problem.values_transposed = has_transposed_values(q, v, is_ragged(opts));
  call.problem.latent = generator::may_be_latent(call.problem) && is_first_columns(v, k);
  call.q = &q;
  call.k = &k;
  call.v = &v;
  call.lse = opts.lse ? &*opts.lse : nullptr;
  find_sequences(call, opts);
  call.num_heads_q = q.shape[heads_dim];
  call.num_heads_kv = k.shape[heads_dim];
  call.softmax_scale = softmax_scale_of(opts, call.problem.head_dim);
  call.softcap = opts.softcap;
  check_heads(call);
  check_tiles(call);
  add_input(call, "q", q);
  add_input(call, "k", k);
  add_input(call, "v", v, call.problem.values_transposed ? Operand::Role::columns : Operand::Role::rows);
  if (opts.k_rotary) add_input(call, "k_rotary", *(call.k_rotary = &*opts.k_rotary));
  add_ragged(call, opts);
  add_scales(call, opts);
  add_out_scale(call, opts);
  call.alibi_slopes = add_of_heads(call, "alibi_slopes", opts.alibi_slopes);
  call.sinks = add_of_heads(call, "sinks", opts.sinks);
  add_tensors_of_scores(call, opts);
  add_functions(call, opts);
  add_dropout(call, opts);
  add_block_mask(call, opts);
  add_plan(call, opts);
  if (call.lse) {
    check_lse(call, *call.lse);
    add_output(call, "lse", *call.lse, Operand::Role::lse);
  }
  return call;
}

ForwardCall validate_function_scores(const AttentionOptions& opts, const CallShape& shape, const Tensor& scores,
                                     const std::optional<Tensor>& slopes) {
  ForwardCall call = call_of_shape(shape);
  AttentionOptions functions;
  functions.score = opts.score;
  functions.mask = opts.mask;
  call.problem = problem_of(DType::f16, kHeadDimStep, kHeadDimStep, functions, Masks{});
  add_functions(call, opts);
  add_output(call, "scores", scores, Operand::Role::captured_packed);
  if (slopes) add_output(call, "slopes", *slopes, Operand::Role::captured_packed);
  return call;
}

ForwardCall validate_block_mask(const AttentionOptions& opts, const CallShape& shape, const Tensor& into) {
  ForwardCall call = call_of_shape(shape);
  const std::pair<const char*, std::int64_t> sizes[] = {{"batch", call.batch},
                                                        {"num_heads_q", call.num_heads_q},
                                                        {"seqlen_q", call.seqlen_q},
                                                        {"seqlen_kv", call.seqlen_kv}};
  for (const auto& [name, size] : sizes)
    if (size < 0 || size > kMaxSize) reject("shape: {} must be from 0 to {}, was {}", name, kMaxSize, size);
  const Problem asked = problem_of(DType::f16, kHeadDimStep, kHeadDimStep, opts, Masks{});
  call.problem = generator::predicates_of(asked);
  if (generator::feature_bits(call.problem) == 0)
    reject("block_mask: must be made of boolean_mask, documents, tree or mask, had none of them");
  AttentionOptions predicates;
  predicates.boolean_mask = opts.boolean_mask;
  predicates.documents = opts.documents;
  predicates.tree = opts.tree;
  add_tensors_of_scores(call, predicates);
  if (opts.mask) add_captures(call, *(call.mask = &*opts.mask));
  if (opts.mask) call.query_offsets = add_offsets(call, "query_offsets", opts.query_offsets);
  if (opts.mask) call.key_offsets = add_offsets(call, "key_offsets", opts.key_offsets);
  check_block_mask(call, "into", into);
  add_output(call, "into", into, Operand::Role::captured_packed);
  call.block_mask = &into;
  return call;
}

void validate_out(ForwardCall& call, const Tensor& out) {
  const DType dtype = generator::out_dtype(call.problem);
  if (call.problem.e4m3_queries && out.dtype != dtype)
    reject("out: dtype must be {}, which is out_dtype, was {}", to_string(dtype), to_string(out.dtype));
  check_dtype("out", out, dtype);
  check_shape("out", out, kRowsRules);
  require_size("out", out, kRowsRules, batch_dim, call.q->shape[batch_dim], "q");
  require_size("out", out, kRowsRules, seqlen_dim, call.q->shape[seqlen_dim], "q");
  require_size("out", out, kRowsRules, heads_dim, call.num_heads_q, "q");
  require_size("out", out, kRowsRules, head_dim_dim, call.problem.head_dim_v, "v");
  add_output(call, "out", out, Operand::Role::rows);
  call.out = &out;
}

}  // namespace flashjit::runtime
