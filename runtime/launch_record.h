// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashjit/engine.h"
#include "generator/plan.h"

struct CUfunc_st;

namespace flashjit::runtime {

class TileCounters;

// A kernel that is ready on one device. Never changes once it is in the table.
struct LaunchRecord {
  CUfunc_st* function = nullptr;  // a CUfunction
  Variant variant;
  generator::Plan plan{};
  KernelInfo info;
  int resident_blocks = 0;                // that the device runs at once
  TileCounters* tile_counters = nullptr;  // the device's; null unless the kernel draws its tiles
};

}  // namespace flashjit::runtime
