// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/ceiling.h"

#include <flashjit/error.h>
#include <fmt/format.h>

namespace flashjit::cli {
namespace {

constexpr double kHopperFlopPerClock = 4096;  // of one SM: dense f16 or bf16 with sums in f32
constexpr double kMegahertzFlopPerTflop = 1e6;

Ceiling hopper_peak(const DeviceIdentity& identity) {
  const double tflops = identity.sm_count * kHopperFlopPerClock * identity.sm_clock_mhz / kMegahertzFlopPerTflop;
  return {tflops, fmt::format("the tensor cores' dense peak: {} SMs, {} FLOP per clock, {} MHz", identity.sm_count,
                              kHopperFlopPerClock, identity.sm_clock_mhz)};
}

}  // namespace

Ceiling find_ceiling(Engine& engine, const DeviceInfo& device, const DeviceIdentity& identity) {
  if (identity.architecture == "sm_90a") return hopper_peak(identity);
  try {
    return {engine.measure_mma_ceiling(DType::bf16, device.ordinal), "a loop of nothing but mma.sync, measured"};
  } catch (const Error&) {  // no compiler, perhaps; the page does without
    return {};
  }
}

}  // namespace flashjit::cli
