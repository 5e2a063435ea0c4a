// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/validate.h"

#include <algorithm>
#include <array>

#include "generator/dtype.h"
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

// What a tensor's role asks of its view.
struct Rules {
  const char* const* dim_names;
  int rank;
  int stride_step;           // a power of two
  std::uintptr_t alignment;  // likewise
};
constexpr Rules kRowsRules{kDimNames, kRank, kStrideStep, kAlignment};
constexpr Rules kLseRules{kLseDimNames, 3, 1, sizeof(float)};
constexpr Rules kOfHeadsRules{kOfHeadsDimNames, 2, 1, sizeof(float)};
constexpr Rules kOfAllBatchesRules{kOfHeadsDimNames + 1, 1, 1, sizeof(float)};  // of all batch entries
const Rules& rules_of(Operand::Role role, const Tensor& tensor) {
  switch (role) {
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
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    reject("{}: the last dimension must be contiguous (stride 1), its stride was {}", name, tensor.strides[last]);
  }
  for (int i = 0; i < last; ++i) {
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
  const Rules& rules = rules_of(Operand::Role::of_heads, *values);
  check_shape(name, *values, rules);
  if (rules.rank > 1) require_size(name, *values, rules, 0, call.batch, "q");
  require_size(name, *values, rules, rules.rank - 1, call.num_heads_q, "q");
  add_input(call, name, *values, Operand::Role::of_heads);
  return &*values;
}

void check_lse(const ForwardCall& call, const Tensor& lse) {
  require_f32("lse", lse);
  check_shape("lse", lse, kLseRules);
  require_size("lse", lse, kLseRules, 0, call.batch, "q");
  require_size("lse", lse, kLseRules, 1, call.num_heads_q, "q");
  require_size("lse", lse, kLseRules, 2, call.seqlen_q, "q");
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
  if (call.lse) {
    check_lse(call, *call.lse);
    add_output(call, "lse", *call.lse, Operand::Role::lse);
  }
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
