// SPDX-License-Identifier: Apache-2.0
// Is there a GPU to run on, and if not, why.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>

namespace flashjit::cli {

// The first device that kernels exist for.
std::optional<DeviceInfo> usable_gpu(const SystemInfo& system);
// One line; only where usable_gpu gives nothing.
std::string why_no_gpu(const SystemInfo& system);
// Throws Error(no_device): "verify: needs a GPU: ...".
DeviceInfo require_gpu(const SystemInfo& system, const std::string& who);

}  // namespace flashjit::cli
