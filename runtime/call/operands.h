// SPDX-License-Identifier: Apache-2.0
// The tensors of a call, as kernels reach them: what their views may be, and the memory that they span.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "flashjit/tensor.h"
#include "generator/functions.h"
#include "runtime/call/tensor_dims.h"

namespace flashjit::runtime {

struct MemoryRange {
  std::uintptr_t begin, end;  // the bytes that a view spans; equal when it has no elements
  bool dense;                 // it touches all of them
  bool empty() const noexcept { return begin == end; }
};

// A tensor of a call. Without initialisers, so that a call pays for the operands that it has.
struct Operand {
  // [batch, seqlen, heads, head_dim], the same with a row for each column, [batch, heads, seqlen] of f32, [batch,
  // heads] or [heads] of f32, [batch] of i32, [positions, rotary_dim / 2], or what a function captures: a user's, or
  // one of the library's whose last dimension is contiguous.
  enum class Role { rows, columns, lse, of_heads, of_batch, rotary, captured, captured_packed };

  const char* name;
  const Tensor* tensor;
  Role role;
  bool written;
  MemoryRange range;
};

// The operands of a call, in the order in which they were checked.
class Operands {
 public:
  static constexpr int kMost = 36 + 2 * static_cast<int>(generator::kMaxCaptures);

  void add(const Operand& operand) { items_[static_cast<std::size_t>(count_++)] = operand; }
  const Operand* begin() const noexcept { return items_.data(); }
  const Operand* end() const noexcept { return items_.data() + count_; }

 private:
  std::array<Operand, kMost> items_;
  int count_ = 0;
};

// What a tensor's role asks of its view.
struct Rules {
  const char* const* dim_names;
  int rank;
  int stride_step;           // a power of two
  std::uintptr_t alignment;  // likewise
  bool packed_rows = true;   // the last dimension is contiguous, or this one:
  int contiguous = -1;
};
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;  // kernels add block sizes to lengths in 32 bits
inline constexpr int kStrideStep = 8;  // elements, of 16 bits: rows are copied in pieces of 16 bytes
inline constexpr std::uintptr_t kAlignment = 16;
inline constexpr const char* kLseDimNames[] = {"batch", "num_heads", "seqlen"};
inline constexpr const char* kOfHeadsDimNames[] = {"batch", "num_heads"};
inline constexpr const char* kCapturedDimNames[] = {"dimension 0", "dimension 1", "dimension 2", "dimension 3",
                                                    "dimension 4"};
inline constexpr Rules kRowsRules{kDimNames, kRank, kStrideStep, kAlignment};
inline constexpr Rules kLseRules{kLseDimNames, 3, 1, sizeof(float)};
inline constexpr Rules kOfHeadsRules{kOfHeadsDimNames, 2, 1, sizeof(float)};
inline constexpr Rules kOfAllBatchesRules{kOfHeadsDimNames + 1, 1, 1, sizeof(float)};  // of all batch entries
inline constexpr Rules kOfBatchRules{kOfHeadsDimNames, 1, 1, sizeof(std::int32_t)};
inline constexpr const char* kRotaryDimNames[] = {"positions", "rotary_dim / 2"};
inline constexpr Rules kRotaryRules{kRotaryDimNames, 2, kStrideStep, kAlignment};
inline constexpr const char* kPageTableDimNames[] = {"batch", "entries"};
inline constexpr Rules kPageTableRules{kPageTableDimNames, 2, 1, sizeof(std::int32_t)};
Rules rows_rules(const Tensor& tensor);     // kRowsRules, in steps of its elements
Rules columns_rules(const Tensor& tensor);  // the same of what comes transposed
Rules captured_rules(const Tensor& tensor, bool packed_rows);
Rules rules_of(Operand::Role role, const Tensor& tensor);

bool same_view(const Tensor& a, const Tensor& b) noexcept;

// These throw Error(invalid_argument), which begins with the name.
// Rank, and sizes from 0 to kMaxSize.
void check_shape(const char* name, const Tensor& tensor, const Rules& rules);
void require_size(const char* name, const Tensor& tensor, const Rules& rules, int dim, std::int64_t wanted,
                  const char* like);
// Whether what is written there shares memory with another view. Views that interleave in one buffer, as slices of a
// fused tensor do, are no overlap; those without gaps always are.
bool overlap(const MemoryRange& written, const MemoryRange& other) noexcept;
// Adds a tensor whose shape and dtype were checked: looks at what the view says else, and at its memory. What is
// written must have each element once, and none that the call reads or writes elsewhere.
void add_operand(Operands& operands, const char* name, const Tensor& tensor, Operand::Role role, bool written);
// Numbers that are read, if there are any: i32, or i64 where that may be, contiguous, and so many of them.
void add_numbers(Operands& operands, const char* name, const std::optional<Tensor>& numbers, std::int64_t wanted,
                 const char* of_what, bool may_be_i64);

}  // namespace flashjit::runtime
