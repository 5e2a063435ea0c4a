// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashjit/engine.h"
#include "generator/source.h"
#include "runtime/call/operation.h"

struct CUfunc_st;

namespace flashjit::runtime {

class StreamScratch;
class TileCounters;

// A kernel that is ready on one device. Never changes once it is in the table.
struct LaunchRecord {
  explicit LaunchRecord(const generator::KernelSpec& of) : spec(of) {}

  CUfunc_st*& function(generator::Turn turn) noexcept { return functions[static_cast<std::size_t>(turn)]; }
  CUfunc_st* function(generator::Turn turn) const noexcept { return functions[static_cast<std::size_t>(turn)]; }

  generator::KernelSpec spec;
  CUfunc_st* functions[generator::kTurns] = {};  // each a CUfunction; null where calls have no such launch
  KernelInfo info;
  DeviceLimits limits;
  StreamScratch* scratch = nullptr;       // the device's; null where calls get memory of their own
  TileCounters* tile_counters = nullptr;  // the device's; null unless the kernel draws its tiles
};

}  // namespace flashjit::runtime
