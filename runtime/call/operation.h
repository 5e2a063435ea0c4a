// SPDX-License-Identifier: Apache-2.0
// A call as a device runs it: launches of kernels in plain data, which knows neither the driver nor the emulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "generator/arguments.h"
#include "generator/source.h"
#include "generator/spec.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/plain_kernels.h"
#include "runtime/call/tensor_map.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

struct Launch {
  static constexpr std::size_t kPartBytes = 2304;  // room for the arguments of all parts
  static constexpr std::size_t kMaxBytes = sizeof(generator::HopperArguments) + kPartBytes;
  static constexpr int kMaxMaps = 5;
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  generator::Turn turn = generator::Turn::attention;
  std::int64_t blocks = 0;
  int cluster = 1;             // blocks of one
  bool sizes_cluster = false;  // whether the launch says so; else the kernel has it compiled in
  int threads = 0;             // of a block
  int shared_bytes = 0;        // dynamic shared memory of a block
  // What the kernel is given, but for what only a device can know.
  alignas(64) std::byte arguments[kMaxBytes];
  std::size_t argument_bytes = 0;
  bool overlaps = false;  // may begin while the one before it still runs: its kernel waits itself
  MapPlace maps[kMaxMaps];
  int map_count = 0;
  // Where the address of a tile counter belongs: a 32-bit word that is 0, and 0 again afterwards.
  std::size_t tile_counter_offset = kNowhere;

  template <class Value>
  void write_argument(std::size_t offset, const Value& value) noexcept {
    std::memcpy(arguments + offset, &value, sizeof(value));
  }
};

// A launch of a kernel beside those of attention. It points to the tensors of the call that it was made of.
struct PlainLaunch {
  const generator::PlainKernel& kernel;  // of the engine's
  Launch launch;
};
// Of so many blocks, its arguments yet to be written. Throws Error(invalid_argument), which begins with the name, for
// more than a launch can have.
PlainLaunch plain_launch(const generator::PlainKernel& kernel, std::int64_t blocks, const char* name);
// Writes the arguments of the parts of the call's problem behind core_bytes of the kernel itself. scratch: what a
// ragged batch has its list in.
void set_part_arguments(Launch& launch, const ForwardCall& call, std::size_t core_bytes, std::byte* scratch);
// How many lanes of a warp have a row of so many chunks, where kernels give each a chunk at a time.
int row_lanes_log2(int chunks) noexcept;
// call: of validate_block_mask.
PlainLaunch make_block_mask_launch(const ForwardCall& call, const Architecture& architecture, PlainKernels& kernels);

// call: of validate_function_scores, with the same tensors; rows: of one head of a batch entry, from the first one on.
struct RowsOfHead {
  std::int64_t batch, head, first, count;
};
PlainLaunch make_function_scores_launch(const ForwardCall& call, const Tensor& scores,
                                        const std::optional<Tensor>& slopes, const RowsOfHead& rows, bool in_f32,
                                        const Architecture& architecture, PlainKernels& kernels);

// What makes the list of tiles of a call with a ragged batch and a variant.
Launch make_batch_plan_launch(const ForwardCall& call, const Tensor& memory, int sm_count);

// What operations are cut by.
struct DeviceLimits {
  std::int64_t resident_blocks = 0;  // of the kernel, that the device runs at once
  int sm_count = 0;
};

// Whether blocks of the variant's kernels draw their tiles from a counter.
bool draws_tiles(const Variant& variant) noexcept;

// Launches in order: each sees what those before it wrote. Attention's is of the kernel that the operation was made
// with, the others of what stands beside it (generator::render_beside): for a ragged batch without a plan what makes
// its list of tiles comes first. It points to the call's tensors.
class Operation {
 public:
  // Device memory that the launches have to themselves, with any contents: so many bytes from a multiple of 16 on.
  static std::size_t scratch_bytes(const ForwardCall& call, const generator::KernelSpec& kernel,
                                   const DeviceLimits& limits);
  // For a call that has output elements. Throws Error(invalid_argument) when the call has more tiles than a launch can
  // have blocks.
  Operation(const ForwardCall& call, const generator::KernelSpec& kernel, const DeviceLimits& limits,
            std::byte* scratch);

  Launch* begin() noexcept { return launches_; }
  Launch* end() noexcept { return launches_ + count_; }
  const Launch* begin() const noexcept { return launches_; }
  const Launch* end() const noexcept { return launches_ + count_; }

 private:
  Launch launches_[generator::kTurns];
  int count_ = 0;
};

}  // namespace flashjit::runtime
