// SPDX-License-Identifier: Apache-2.0
#include "cli/io/device.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include "cli/io/command.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

constexpr const char* kArchitectureToEmulate = "sm_90a";  // when none is named

}  // namespace

void add_emulated_architecture_option(CLI::App* subcommand, DeviceChoice& choice) {
  add_option(subcommand, "--arch", choice.architecture, kArchType,
             fmt::format("With --device emulate: the target of the kernels; 'flashjit info' lists them [default: {}]",
                         kArchitectureToEmulate));
}

void choose_device(const DeviceChoice& choice, EngineOptions& options) {
  if (choice.device == "gpu") options.emulate.clear();
  if (choice.device == "emulate" && options.emulate.empty()) options.emulate = kArchitectureToEmulate;
  if (choice.architecture.empty()) return;
  if (options.emulate.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--arch: must be given only with --device emulate, was '{}'", choice.architecture));
  }
  options.emulate = known_architecture(choice.architecture);
}

std::string known_architecture(const std::string& name) {
  std::vector<std::string> names;
  for (const Architecture& architecture : architectures()) names.push_back(architecture.name);
  require_word("--arch", name, names);
  return name;
}

bool is_emulated(const DeviceInfo& device) { return device.ordinal == kHostMemory; }

std::optional<DeviceInfo> usable_device(const SystemInfo& system) {
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

DeviceInfo require_device(const SystemInfo& system, const std::string& who) {
  const std::optional<DeviceInfo> gpu = usable_device(system);
  if (!gpu) throw Error(ErrorCode::no_device, fmt::format("{}: needs a GPU: {}", who, why_no_gpu(system)));
  return *gpu;
}

}  // namespace flashjit::cli
