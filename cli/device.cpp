// SPDX-License-Identifier: Apache-2.0
#include "cli/device.h"

#include <flashjit/error.h>
#include <fmt/format.h>

namespace flashjit::cli {

std::optional<DeviceInfo> usable_gpu(const SystemInfo& system) {
  for (const DeviceInfo& device : system.devices) {
    if (!device.architecture.empty()) return device;
  }
  return std::nullopt;
}

std::string why_no_gpu(const SystemInfo& system) {
  if (!system.driver_problem.empty()) return system.driver_problem;
  if (system.devices.empty()) return "the driver sees no device";
  const DeviceInfo& device = system.devices.front();
  return fmt::format("no kernel here runs on {} (compute capability {}.{})", device.name, device.major, device.minor);
}

DeviceInfo require_gpu(const SystemInfo& system, const std::string& who) {
  const std::optional<DeviceInfo> gpu = usable_gpu(system);
  if (!gpu) throw Error(ErrorCode::no_device, fmt::format("{}: needs a GPU: {}", who, why_no_gpu(system)));
  return *gpu;
}

}  // namespace flashjit::cli
