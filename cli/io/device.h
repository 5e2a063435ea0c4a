// SPDX-License-Identifier: Apache-2.0
// Which device kernels run on, and why there is none.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>

#include "cli/io/command.h"

namespace flashjit::cli {

// Where a command runs kernels: --device and --arch.
struct DeviceChoice {
  std::string device = "auto";  // gpu or emulate; every other word leaves it to the environment
  std::string architecture;     // to emulate
};
void add_emulated_architecture_option(CLI::App* subcommand, DeviceChoice& choice);
// Throws Error(invalid_argument) which names the option.
void choose_device(const DeviceChoice& choice, EngineOptions& options);
// One that kernels are rendered for. Throws Error(invalid_argument) which names --arch.
std::string known_architecture(const std::string& name);
bool is_emulated(const DeviceInfo& device);

// The first device that kernels exist for; the emulated one of an engine that emulates.
std::optional<DeviceInfo> usable_device(const SystemInfo& system);
// One line; only where usable_device gives nothing.
std::string why_no_gpu(const SystemInfo& system);
// Throws Error(no_device): "verify: needs a GPU: ...".
DeviceInfo require_device(const SystemInfo& system, const std::string& who);

}  // namespace flashjit::cli
