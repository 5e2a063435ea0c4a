// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU. Exit status 77: skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "flashjit/engine.h"

namespace {

// Why nothing can run here; empty when there is a device with kernels.
std::string why_skipped(const flashjit::SystemInfo& system) {
  if (!system.driver_problem.empty()) return system.driver_problem;
  if (system.devices.empty()) return "the driver reports no device";
  for (const flashjit::DeviceInfo& device : system.devices) {
    if (!device.architecture.empty()) return "";
  }
  return "no kernels for " + system.devices.front().name;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  const flashjit::SystemInfo system = flashjit::Engine().system();
  if (const std::string why = why_skipped(system); !why.empty()) {
    std::printf("skipped: no GPU (%s)\n", why.c_str());
    return kSkipped;
  }
  for (const flashjit::DeviceInfo& device : system.devices) {
    std::printf("device %d: %s, %s\n", device.ordinal, device.name.c_str(), device.architecture.c_str());
  }
  return doctest::Context(argc, argv).run();
}
