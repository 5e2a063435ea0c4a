// SPDX-License-Identifier: Apache-2.0
// What attention finds out before it begins, and the memory that it works in, kept for many calls.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "flashjit/problem.h"
#include "flashjit/tensor.h"
#include "flashjit/variant.h"

namespace flashjit {

namespace runtime {
class RememberedCalls;
}

// For all layers of a serving step: made by Engine::plan, and given to calls in AttentionOptions::plan. Of a ragged
// batch it is the list of tiles, and where a variant splits keys the memory for partial results. Nobody else may write
// to it as long as calls have it. Such calls neither make a list nor allocate memory. The list has what offsets,
// lengths, padding and indices said when the device came to it; Engine::update makes it anew in place, in a captured
// graph too. Calls with the same plan must follow one another on the device. Movable, not copyable; not synchronised:
// one thread at a time, but for calls that only have it in their options. It must outlive the calls that have it, as
// their work on the device, and may outlive the engine.
// A call into the caller's memory that differs from an earlier one with the plan in addresses alone, as those of a
// model's layers do, costs the host little more than its launch. The driver is asked once whether an address is of the
// device's memory: one that becomes that of other memory while the plan lives is not found out.
class BatchPlan {
 public:
  // Of no call.
  BatchPlan() = default;
  BatchPlan(BatchPlan&& other) noexcept { *this = std::move(other); }
  BatchPlan& operator=(BatchPlan&& other) noexcept {
    problem_ = other.problem_, variant_ = other.variant_, sizes_ = other.sizes_;
    memory_ = std::exchange(other.memory_, {});
    owned_ = std::move(other.owned_);
    remembered_ = std::move(other.remembered_);
    return *this;
  }

  // Of the calls that it is for: all that is compiled in, the kernel, and the sizes that stand on the host.
  const Problem& problem() const noexcept { return problem_; }
  const Variant& variant() const noexcept { return variant_; }
  struct Sizes {
    std::int64_t batch = 0;        // sequences
    std::int64_t query_batch = 0;  // batch entries of q: 1 where sequences are packed
    std::int64_t query_rows = 0;   // of a batch entry of q
    std::int64_t key_rows = 0;     // of a batch entry of k, or of a row of the page table
    std::int64_t key_batch = 0;    // batch entries of k, or rows of the page table
    std::int64_t num_heads_q = 0, num_heads_kv = 0;
    std::int64_t max_seqlen_q = 0;
    std::int64_t heads_of_tile = 0;  // query heads that share one: depends on the heads of a block mask
    std::int64_t fixed_split_size = 0;
    std::int64_t seen_keys = 0;     // of a tile, by window and chunk; 0 where the variant splits no keys
    std::int64_t fixed_splits = 0;  // of a tile, of fixed_split_size, by max_seqlen_kv too; 0 without
  };
  const Sizes& sizes() const noexcept { return sizes_; }
  // Device memory that planning writes and calls read: i32 [words]. Empty: of no call.
  const Tensor& memory() const noexcept { return memory_; }

 private:
  friend class Engine;

  Problem problem_;
  Variant variant_;
  Sizes sizes_;
  Tensor memory_;
  DeviceTensor owned_;  // that memory, where it is not the caller's
  std::shared_ptr<runtime::RememberedCalls> remembered_;
};

}  // namespace flashjit
