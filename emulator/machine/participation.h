// SPDX-License-Identifier: Apache-2.0
// For operations that a whole warp executes together.
#pragma once

#include <fmt/format.h>

#include "emulator/machine/warp.h"

namespace flashjit::emulator {

// Whether all 32 lanes take part; false after a report.
inline bool whole_warp_takes_part(Warp& warp, LaneMask active) {
  if (active == kAllLanes) return true;
  warp.report(FindingKind::unequal_participation, [&] {
    return fmt::format("all 32 lanes of the warp must execute it together; the mask of those that do is {:#010x}",
                       active);
  });
  return false;
}

// bar.warp.sync, for the decoder of what begins with "bar"; "warp" has been taken.
void decode_bar_warp(Decoding& decoding, Instruction& instruction);

}  // namespace flashjit::emulator
