// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/validate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "generator/arguments.h"
#include "generator/dtype.h"
#include "generator/features.h"
#include "generator/source.h"
#include "runtime/call/scores.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;  // kernels add block sizes to lengths in 32 bits
constexpr std::int64_t kMaxTiles = (std::int64_t{1} << 31) - 1;
constexpr int kSmallestBlockQ = 16;
constexpr int kHeadDimStep = 8;
constexpr int kMaxHeadDim = 256;
constexpr int kStrideStep = 8;  // elements: rows are copied in pieces of 16 bytes
constexpr std::uintptr_t kAlignment = 16;

constexpr const char* kLseDimNames[] = {"batch", "num_heads", "seqlen"};
constexpr const char* kOfHeadsDimNames[] = {"batch", "num_heads"};
constexpr const char* kCapturedDimNames[] = {"dimension 0", "dimension 1", "dimension 2", "dimension 3", "dimension 4"};

// What a tensor's role asks of its view.
struct Rules {
  const char* const* dim_names;
  int rank;
  int stride_step;           // a power of two
  std::uintptr_t alignment;  // likewise
  bool packed_rows = true;   // the last dimension is contiguous
};
constexpr Rules kRowsRules{kDimNames, kRank, kStrideStep, kAlignment};
constexpr Rules kLseRules{kLseDimNames, 3, 1, sizeof(float)};
constexpr Rules kOfHeadsRules{kOfHeadsDimNames, 2, 1, sizeof(float)};
constexpr Rules kOfAllBatchesRules{kOfHeadsDimNames + 1, 1, 1, sizeof(float)};  // of all batch entries
constexpr Rules kOfBatchRules{kOfHeadsDimNames, 1, 1, sizeof(std::int32_t)};
Rules captured_rules(const Tensor& tensor, bool packed_rows) {
  return {kCapturedDimNames, tensor.shape.size(), 1, size_of(tensor.dtype), packed_rows};
}
Rules rules_of(Operand::Role role, const Tensor& tensor) {
  switch (role) {
    case Operand::Role::of_batch:
      return kOfBatchRules;
    case Operand::Role::captured:
    case Operand::Role::captured_packed:
      return captured_rules(tensor, role == Operand::Role::captured_packed);
    case Operand::Role::lse:
      return kLseRules;
    case Operand::Role::of_heads:
      return tensor.shape.size() == kOfAllBatchesRules.rank ? kOfAllBatchesRules : kOfHeadsRules;
    case Operand::Role::rows:
      break;
  }
  return kRowsRules;
}

bool has_elements(const Tensor& tensor) noexcept {
  return std::none_of(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t size) { return size == 0; });
}

void check_shape(const char* name, const Tensor& tensor, const Rules& rules) {
  if (tensor.shape.size() != rules.rank) {
    reject("{}: rank must be {}, was {} with shape {}", name, rules.rank, tensor.shape.size(), to_string(tensor.shape));
  }
  if (tensor.strides.size() != rules.rank) {
    reject("{}: must have {} strides like its shape, had {}", name, rules.rank, tensor.strides.size());
  }
  for (int i = 0; i < rules.rank; ++i) {
    if (tensor.shape[i] < 0 || tensor.shape[i] > kMaxSize) {
      reject("{}: {} must be from 0 to {}, was {}", name, rules.dim_names[i], kMaxSize, tensor.shape[i]);
    }
  }
}

void check_strides(const char* name, const Tensor& tensor, const Rules& rules) {
  const int last = rules.rank - 1;
  if (rules.packed_rows && tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    reject("{}: the last dimension must be contiguous (stride 1), its stride was {}", name, tensor.strides[last]);
  }
  for (int i = 0; i < rules.rank - (rules.packed_rows ? 1 : 0); ++i) {
    if (tensor.shape[i] <= 1) continue;
    if (tensor.strides[i] < 0) {
      reject("{}: the stride of {} must not be negative, was {}", name, rules.dim_names[i], tensor.strides[i]);
    }
    if ((tensor.strides[i] & (rules.stride_step - 1)) != 0) {
      reject("{}: the stride of {} must be a multiple of {} elements, was {}", name, rules.dim_names[i],
             rules.stride_step, tensor.strides[i]);
    }
  }
}

void check_pointer(const char* name, const Tensor& tensor, const Rules& rules) {
  if (!tensor.data) reject("{}: must point to its elements, was null", name);
  if ((reinterpret_cast<std::uintptr_t>(tensor.data) & (rules.alignment - 1)) != 0) {
    reject("{}: must be aligned to {} bytes, was at {}", name, rules.alignment, fmt::ptr(tensor.data));
  }
}

MemoryRange range_of(const char* name, const Tensor& tensor, const Rules& rules) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::int64_t last = 0, elements = 1, bytes = 0;
  std::uintptr_t end = 0;
  bool overflow = false, sparse = false;
  for (int i = 0; i < rules.rank; ++i) {
    const std::int64_t steps = tensor.shape[i] - 1;
    std::int64_t span = 0;
    overflow |= steps > 0 && __builtin_mul_overflow(steps, tensor.strides[i], &span);
    overflow |= __builtin_add_overflow(last, span, &last);
    sparse |= __builtin_mul_overflow(elements, tensor.shape[i], &elements);
  }
  overflow |= __builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, element, &bytes);
  overflow |= __builtin_add_overflow(begin, bytes, &end);
  if (overflow) {
    reject("{}: must span less than 2^63 bytes, had shape {} and strides {}", name, to_string(tensor.shape),
           to_string(tensor.strides));
  }
  return {begin, end, !sparse && elements == last};
}

MemoryRange check_view(const char* name, const Tensor& tensor, const Rules& rules) {
  if (!has_elements(tensor)) return {};
  check_strides(name, tensor, rules);
  check_pointer(name, tensor, rules);
  return range_of(name, tensor, rules);
}

void require_size(const char* name, const Tensor& tensor, const Rules& rules, int dim, std::int64_t wanted,
                  const char* like) {
  if (tensor.shape[dim] == wanted) return;
  reject("{}: {} must be {} like that of {}, was {}", name, rules.dim_names[dim], wanted, like, tensor.shape[dim]);
}

void check_dtype(const char* name, const Tensor& tensor, DType wanted) {
  if (tensor.dtype == wanted) return;
  reject("{}: dtype must be {} like that of q, was {}", name, to_string(wanted), to_string(tensor.dtype));
}

void check_head_dim(const char* name, const Tensor& tensor) {
  const std::int64_t head_dim = tensor.shape[head_dim_dim];
  if (head_dim < kHeadDimStep || head_dim > kMaxHeadDim || head_dim % kHeadDimStep != 0) {
    reject("{}: head_dim must be a multiple of {} from {} to {}, was {}", name, kHeadDimStep, kHeadDimStep, kMaxHeadDim,
           head_dim);
  }
}

void check_heads(const ForwardCall& call) {
  if (call.num_heads_q == 0) return;
  if (call.num_heads_kv == 0 || call.num_heads_q % call.num_heads_kv != 0) {
    reject("k: num_heads must divide the {} of q, was {}", call.num_heads_q, call.num_heads_kv);
  }
}

void check_tiles(const ForwardCall& call) {
  std::int64_t tiles = (call.seqlen_q + kSmallestBlockQ - 1) / kSmallestBlockQ;
  if (__builtin_mul_overflow(tiles, call.batch, &tiles) || __builtin_mul_overflow(tiles, call.num_heads_q, &tiles) ||
      tiles > kMaxTiles) {
    reject("q: batch * num_heads * ceil(seqlen / {}) must be at most {}, had shape {}", kSmallestBlockQ, kMaxTiles,
           to_string(call.q->shape));
  }
}

// Two indices must not name the same element. Sorted by stride, each dimension has to step over all smaller ones.
void check_written_once(const char* name, const Tensor& tensor) {
  struct Step {
    std::int64_t stride, size;
  };
  std::array<Step, Dims::kMaxRank> steps;
  int count = 0;
  for (int i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] <= 1) continue;
    int at = count++;
    for (; at > 0 && steps[at - 1].stride > tensor.strides[i]; --at) steps[at] = steps[at - 1];
    steps[at] = {tensor.strides[i], tensor.shape[i]};
  }
  std::int64_t covered = 1;
  for (int i = 0; i < count; ++i) {
    if (steps[i].stride < covered) {
      reject("{}: strides must not let elements overlap, were {} for shape {}", name, to_string(tensor.strides),
             to_string(tensor.shape));
    }
    covered += steps[i].stride * (steps[i].size - 1);
  }
}

// Views that interleave in one buffer, as slices of a fused tensor do, are no overlap; those without gaps always are.
void check_apart(const char* name, const MemoryRange& written, const char* other_name, const MemoryRange& other) {
  const bool meet = written.begin < other.end && other.begin < written.end;
  if (meet && ((written.dense && other.dense) || written.begin == other.begin)) {
    reject("{}: must not overlap {}, shared memory at {:#x}", name, other_name, std::max(written.begin, other.begin));
  }
}

// Only looks at what the view says, and at memory: shape and dtype were checked. What is written must have each element
// once, and none that the call reads or writes elsewhere.
void add_operand(ForwardCall& call, const char* name, const Tensor& tensor, Operand::Role role, bool written) {
  const MemoryRange range = check_view(name, tensor, rules_of(role, tensor));
  if (written && !range.empty()) {
    check_written_once(name, tensor);
    for (const Operand& other : call.operands) check_apart(name, range, other.name, other.range);
  }
  call.operands.add({name, &tensor, role, written, range});
}
void add_input(ForwardCall& call, const char* name, const Tensor& tensor, Operand::Role role = Operand::Role::rows) {
  add_operand(call, name, tensor, role, false);
}
void add_output(ForwardCall& call, const char* name, const Tensor& tensor, Operand::Role role) {
  add_operand(call, name, tensor, role, true);
}

void require_f32(const char* name, const Tensor& tensor) {
  if (tensor.dtype != DType::f32) reject("{}: dtype must be f32, was {}", name, to_string(tensor.dtype));
}

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
  if (rules.rank > 1) require_size(name, *values, rules, 0, call.batch, "q");
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

// i32 [batch]; null: none.
const Tensor* add_of_batch(ForwardCall& call, const char* name, const std::optional<Tensor>& values) {
  if (!values) return nullptr;
  if (values->dtype != DType::i32) reject("{}: dtype must be i32, was {}", name, to_string(values->dtype));
  check_shape(name, *values, kOfBatchRules);
  require_size(name, *values, kOfBatchRules, 0, call.batch, "q");
  add_input(call, name, *values, Operand::Role::of_batch);
  return &*values;
}

const Tensor* add_offsets(ForwardCall& call, const char* name, const std::optional<Tensor>& offsets) {
  if (offsets && !call.score && !call.mask) reject("{}: must not be given without score or mask, which see them", name);
  return add_of_batch(call, name, offsets);
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

void add_tensors_of_scores(ForwardCall& call, const AttentionOptions& opts) {
  const WantedDim batch{"batch", call.batch, true}, heads{"num_heads", call.num_heads_q, true};
  const WantedDim queries{"seqlen_q", call.seqlen_q, true}, keys{"seqlen_kv", call.seqlen_kv};
  call.prefix = add_of_batch(call, "prefix", opts.prefix);
  call.bias = add_called(call, "bias", opts.bias, {batch, heads, queries, keys});
  call.boolean_mask = add_called(call, "boolean_mask", opts.boolean_mask, {batch, heads, queries, keys});
  call.documents = add_called(call, "documents", opts.documents, {batch, keys});
  if (opts.tree && call.seqlen_q > call.seqlen_kv)
    reject("tree: seqlen_q must be at most seqlen_kv, as its queries have the last keys, was {} with {} keys",
           call.seqlen_q, call.seqlen_kv);
  constexpr std::int64_t kWordBits = 64;
  const WantedDim words{"words", (call.seqlen_q + kWordBits - 1) / kWordBits, false, true};
  call.tree = add_called(call, "tree", opts.tree, {batch, {"seqlen_q", call.seqlen_q}, words});
}

void add_dropout(ForwardCall& call, const AttentionOptions& opts) {
  call.dropout = opts.dropout;
  const WantedDim batch{"batch", call.batch, true}, heads{"num_heads", call.num_heads_q, true};
  const WantedDim queries{"seqlen_q", call.seqlen_q, true}, keys{"seqlen_kv", call.seqlen_kv};
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
  constexpr std::int64_t kMaxWords = std::int64_t{1} << 32;  // kernels count them in 32 bits
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
  require_size("lse", lse, kLseRules, 0, call.batch, "q");
  require_size("lse", lse, kLseRules, 1, call.num_heads_q, "q");
  require_size("lse", lse, kLseRules, 2, call.seqlen_q, "q");
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
  const std::int64_t keys = keys_of_query(call.masks, call.seqlen_kv);
  return {call.batch, call.seqlen_q, keys, call.num_heads_q, call.num_heads_kv};
}

ForwardCall validate_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  if (!generator::has_kernels(q.dtype)) {
    reject("q: dtype must be {}, was {}", generator::kernel_dtypes(), to_string(q.dtype));
  }
  check_dtype("k", k, q.dtype);
  check_dtype("v", v, q.dtype);
  check_shape("q", q, kRowsRules);
  check_shape("k", k, kRowsRules);
  check_shape("v", v, kRowsRules);
  check_head_dim("q", q);
  require_size("k", k, kRowsRules, head_dim_dim, q.shape[head_dim_dim], "q");
  check_head_dim("v", v);
  require_size("k", k, kRowsRules, batch_dim, q.shape[batch_dim], "q");
  require_size("v", v, kRowsRules, batch_dim, q.shape[batch_dim], "q");
  require_size("v", v, kRowsRules, seqlen_dim, k.shape[seqlen_dim], "k");
  require_size("v", v, kRowsRules, heads_dim, k.shape[heads_dim], "k");

  ForwardCall call;
  call.masks = masks_of(opts);
  call.problem = problem_of(q.dtype, static_cast<int>(q.shape[head_dim_dim]), static_cast<int>(v.shape[head_dim_dim]),
                            opts, call.masks);
  call.q = &q;
  call.k = &k;
  call.v = &v;
  call.lse = opts.lse ? &*opts.lse : nullptr;
  call.batch = q.shape[batch_dim];
  call.seqlen_q = q.shape[seqlen_dim];
  call.num_heads_q = q.shape[heads_dim];
  call.seqlen_kv = k.shape[seqlen_dim];
  call.num_heads_kv = k.shape[heads_dim];
  call.softmax_scale = softmax_scale_of(opts, call.problem.head_dim);
  call.softcap = opts.softcap;
  check_heads(call);
  check_tiles(call);
  add_input(call, "q", q);
  add_input(call, "k", k);
  add_input(call, "v", v);
  call.alibi_slopes = add_of_heads(call, "alibi_slopes", opts.alibi_slopes);
  call.sinks = add_of_heads(call, "sinks", opts.sinks);
  add_tensors_of_scores(call, opts);
  add_functions(call, opts);
  add_dropout(call, opts);
  add_block_mask(call, opts);
  if (call.lse) {
    check_lse(call, *call.lse);
    add_output(call, "lse", *call.lse, Operand::Role::lse);
  }
  return call;
}

ForwardCall validate_function_scores(const AttentionOptions& opts, const CallShape& shape, const Tensor& scores) {
  ForwardCall call = call_of_shape(shape);
  AttentionOptions functions;
  functions.score = opts.score;
  functions.mask = opts.mask;
  call.problem = problem_of(DType::f16, kHeadDimStep, kHeadDimStep, functions, Masks{});
  add_functions(call, opts);
  add_output(call, "scores", scores, Operand::Role::captured_packed);
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
  check_dtype("out", out, call.problem.dtype);
  check_shape("out", out, kRowsRules);
  require_size("out", out, kRowsRules, batch_dim, call.batch, "q");
  require_size("out", out, kRowsRules, seqlen_dim, call.seqlen_q, "q");
  require_size("out", out, kRowsRules, heads_dim, call.num_heads_q, "q");
  require_size("out", out, kRowsRules, head_dim_dim, call.problem.head_dim_v, "v");
  add_output(call, "out", out, Operand::Role::rows);
  call.out = &out;
}

}  // namespace flashjit::runtime
