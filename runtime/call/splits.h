// SPDX-License-Identifier: Apache-2.0
// Split keys: how those of a call are cut, and the memory that partial results take (templates/attention/splits.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "generator/arguments.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

// How the keys of a call's tiles are split. Where batches are ragged the device chooses, within this.
struct Splitting {
  Tiling tiling;                  // by the call's variant, split or not
  int cluster = 1;                // thread blocks that have a tile or a split of it together
  std::int64_t wanted_tiles = 0;  // 0: nothing is split
  std::int64_t keys = 0;          // of a split; 0: the device chooses
  std::int64_t count = 1;         // splits of a tile; where batches are ragged nothing
  std::int64_t slots = 0;         // partial results
  std::int64_t rows = 0;          // of one
  std::int64_t list_entries = 0;  // of a ragged batch, beyond those without splits

  bool any() const noexcept { return slots > 0; }
};
// What the queries of a tile see at most of the keys of a sequence, by window and chunk. Where batches are ragged,
// however long that is.
std::int64_t seen_keys(const ForwardCall& call, const Tiling& tiling) noexcept;
// sm_count: of the device.
Splitting splitting_of(const ForwardCall& call, const Variant& variant, int sm_count);

// What the launches of a call have to themselves: the list of tiles of a ragged batch, and partial results.
struct Scratch {
  std::size_t partials = 0, weights = 0, counters = 0;  // where they begin; counters where blocks can join splits
  std::size_t bytes = 0;
};
Scratch scratch_of(const ForwardCall& call, const Variant& variant, const Splitting& splitting);

// Whether blocks join the splits of this call themselves. A call without plan or list has nobody who clears counters.
bool joins_splits(const ForwardCall& call, const Variant& variant) noexcept;
// Of the memory of a plan for a batch that is not ragged, what must be 0 before the first call: the counters of blocks
// that join splits. Empty where there are none.
std::span<std::byte> counters_of_plan(const ForwardCall& call, const Variant& variant, const Tensor& memory,
                                      int sm_count);

generator::SplitArguments split_arguments(const ForwardCall& call, const Variant& variant, const Splitting& splitting,
                                          const Scratch& scratch, std::byte* memory);
generator::CombineArguments combine_arguments(const ForwardCall& call, const Splitting& splitting,
                                              const Scratch& scratch, std::byte* memory);
// Thread blocks of that launch.
std::int64_t combine_blocks(const ForwardCall& call, const Splitting& splitting) noexcept;

// What the kernel that makes the list is told of it.
void set_splits(generator::BatchPlanMaker& maker, const ForwardCall& call, const Variant& variant,
                const Splitting& splitting, std::byte* memory);

}  // namespace flashjit::runtime
