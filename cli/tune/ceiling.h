// SPDX-License-Identifier: Apache-2.0
// The rate that no kernel can pass.
#pragma once

#include <flashjit/engine.h>

#include "cli/tune/report.h"

namespace flashjit::cli {

// Computed where wgmma is faster than mma.sync, measured elsewhere; unknown where that cannot be done.
Ceiling find_ceiling(Engine& engine, const DeviceInfo& device, const DeviceIdentity& identity);

}  // namespace flashjit::cli
