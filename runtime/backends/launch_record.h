// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashjit/engine.h"
#include "generator/spec.h"

struct CUfunc_st;

namespace flashjit::runtime {

class TileCounters;

// A kernel that is ready on one device. Never changes once it is in the table.
struct LaunchRecord {
  explicit LaunchRecord(const generator::KernelSpec& of) : spec(of) {}

  generator::KernelSpec spec;
  CUfunc_st* function = nullptr;    // a CUfunction
  CUfunc_st* batch_plan = nullptr;  // likewise, of what makes the list of tiles; null where batches are not ragged
  KernelInfo info;
  int resident_blocks = 0;                // that the device runs at once
  TileCounters* tile_counters = nullptr;  // the device's; null unless the kernel draws its tiles
};

}  // namespace flashjit::runtime
