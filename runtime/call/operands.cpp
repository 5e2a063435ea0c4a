// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/operands.h"

#include <algorithm>

#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

bool has_elements(const Tensor& tensor) noexcept {
  return std::none_of(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t size) { return size == 0; });
}

void check_strides(const char* name, const Tensor& tensor, const Rules& rules) {
  const int contiguous = rules.contiguous < 0 ? rules.rank - 1 : rules.contiguous;
  if (rules.packed_rows && tensor.shape[contiguous] > 1 && tensor.strides[contiguous] != 1) {
    reject("{}: the last dimension must be contiguous (stride 1), its stride was {}", name, tensor.strides[contiguous]);
  }
  for (int i = 0; i < rules.rank; ++i) {
    if (tensor.shape[i] <= 1 || (rules.packed_rows && i == contiguous)) continue;
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

}  // namespace

Rules rows_rules(const Tensor& tensor) {
  const int step = static_cast<int>(kAlignment / std::max<std::size_t>(size_of(tensor.dtype), 1));
  return {kDimNames, kRank, step, kAlignment};
}

Rules columns_rules(const Tensor& tensor) {
  Rules rules = rows_rules(tensor);
  rules.contiguous = seqlen_dim;
  return rules;
}

Rules captured_rules(const Tensor& tensor, bool packed_rows) {
  return {kCapturedDimNames, tensor.shape.size(), 1, size_of(tensor.dtype), packed_rows};
}

Rules rules_of(Operand::Role role, const Tensor& tensor) {
  switch (role) {
    case Operand::Role::of_batch:
      return kOfBatchRules;
    case Operand::Role::rotary:
      return kRotaryRules;
    case Operand::Role::captured:
    case Operand::Role::captured_packed:
      return captured_rules(tensor, role == Operand::Role::captured_packed);
    case Operand::Role::lse:
      return kLseRules;
    case Operand::Role::of_heads:
      return tensor.shape.size() == kOfAllBatchesRules.rank ? kOfAllBatchesRules : kOfHeadsRules;
    case Operand::Role::columns:
      return columns_rules(tensor);
    case Operand::Role::rows:
      break;
  }
  return rows_rules(tensor);
}

bool same_view(const Tensor& a, const Tensor& b) noexcept {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
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

void require_size(const char* name, const Tensor& tensor, const Rules& rules, int dim, std::int64_t wanted,
                  const char* like) {
  if (tensor.shape[dim] == wanted) return;
  reject("{}: {} must be {} like that of {}, was {}", name, rules.dim_names[dim], wanted, like, tensor.shape[dim]);
}

bool overlap(const MemoryRange& written, const MemoryRange& other) noexcept {
  const bool meet = written.begin < other.end && other.begin < written.end;
  return meet && ((written.dense && other.dense) || written.begin == other.begin);
}

void add_operand(Operands& operands, const char* name, const Tensor& tensor, Operand::Role role, bool written) {
  const MemoryRange range = check_view(name, tensor, rules_of(role, tensor));
  if (written && !range.empty()) {
    check_written_once(name, tensor);
    for (const Operand& other : operands)
      if (overlap(range, other.range))
        reject("{}: must not overlap {}, shared memory at {:#x}", name, other.name,
               std::max(range.begin, other.range.begin));
  }
  operands.add({name, &tensor, role, written, range});
}

void add_numbers(Operands& operands, const char* name, const std::optional<Tensor>& numbers, std::int64_t wanted,
                 const char* of_what, bool may_be_i64) {
  if (!numbers) return;
  if (numbers->dtype != DType::i32 && !(may_be_i64 && numbers->dtype == DType::i64))
    reject("{}: dtype must be i32{}, was {}", name, may_be_i64 ? " or i64" : "", to_string(numbers->dtype));
  check_shape(name, *numbers, kOfBatchRules);
  if (numbers->shape[0] != wanted)
    reject("{}: must have {} elements, {}, had {}", name, wanted, of_what, numbers->shape[0]);
  add_operand(operands, name, *numbers, Operand::Role::captured_packed, false);
}

}  // namespace flashjit::runtime
