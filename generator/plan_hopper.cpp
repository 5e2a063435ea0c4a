// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "generator/arguments.h"
#include "generator/features.h"
#include "generator/plan.h"

namespace flashjit::generator {
namespace {

constexpr int kWarpgroupRows = 64;
constexpr int kWarpgroupThreads = 128;
constexpr int kElementBytes = 2;
constexpr int kBarrierBytes = 256;  // the barriers of all rings and the next tile's number

int warpgroups(const HopperVariant& variant) { return variant.block_q / kWarpgroupRows; }

// Registers a thread needs: the accumulators, P, and the rest for addresses, descriptors, softmax state and the loop. P
// neither takes the place of S register by register nor goes to shared memory piece by piece, so that it always counts.
// The rest and the surcharges were fitted to what ptxas 13.0 makes of the variants: those above the limit spill, those
// below do not.
int estimate_registers(const Problem& problem, const HopperVariant& variant) {
  const int scores = variant.block_kv / 2;
  const int second_scores = variant.overlap == GemmSoftmax::three_stage ? scores : 0;
  const int probabilities = variant.block_kv / 4;
  const int output = problem.head_dim_v / 2;
  const int rest = warpgroups(variant) <= 2 ? 36 : 32;
  const int for_overlap = variant.overlap == GemmSoftmax::serial        ? scores * 3 / 16
                          : variant.overlap == GemmSoftmax::three_stage ? scores / 8
                                                                        : std::max(0, scores - 88);
  const int for_store = variant.probabilities == ProbabilitySource::shared ? 4 : 0;
  const int for_loads = variant.warp_specialized ? 0 : 24;
  const int for_cluster = variant.cluster == 1 ? 0 : 4;
  return scores + second_scores + probabilities + output + rest + for_overlap + for_store + for_loads + for_cluster;
}

int output_bytes(const Problem& problem, const HopperVariant& variant) {
  const Panels panels = panels_of(problem.head_dim_v);
  switch (variant.output) {
    case OutputSlot::query:
      return 0;
    case OutputSlot::half:
      return variant.block_q * ((panels.count + 1) / 2) * panels.columns * kElementBytes;
    case OutputSlot::whole:
      break;
  }
  return variant.block_q * panels.row_bytes();
}

}  // namespace

int Panels::row_bytes() const { return count * columns * kElementBytes; }

Panels panels_of(int head_dim) {
  const int columns = head_dim > 32 ? 64 : head_dim > 16 ? 32 : 16;
  return {columns, (head_dim + columns - 1) / columns};
}

// After setmaxnreg the consumers have what the producer gives up; without a producer, what the launch gives to each. A
// lone consumer has as many from the start, of which ptxas spares some.
int available_registers(const HopperVariant& variant) {
  constexpr int kSpecialized[] = {228, 232, 160, 112};
  constexpr int kUniform[] = {255, 255, 168, 128};
  const int at = warpgroups(variant) - 1;
  return variant.warp_specialized ? kSpecialized[at] : kUniform[at];
}

// In the order of memory: Q tiles, K ring, V ring, output slot, P, barriers.
Plan make_plan(const Problem& problem, const HopperVariant& variant) {
  const Panels panels = panels_of(problem.head_dim), panels_v = panels_of(problem.head_dim_v);
  const int q_tiles = variant.q_stages * variant.block_q * panels.row_bytes();
  const int rings = variant.stages * variant.block_kv * (panels.row_bytes() + panels_v.row_bytes());
  const int probabilities =
      variant.probabilities == ProbabilitySource::shared ? variant.block_q * variant.block_kv * kElementBytes : 0;
  Plan plan{};
  plan.threads = kWarpgroupThreads * (warpgroups(variant) + (variant.warp_specialized ? 1 : 0));
  plan.smem_bytes = q_tiles + rings + output_bytes(problem, variant) + probabilities + kBarrierBytes;
  plan.registers = estimate_registers(problem, variant);
  plan.argument_bytes = argument_bytes(problem, sizeof(HopperArguments), alignof(HopperArguments));
  plan.panel_columns = panels.columns;
  plan.panel_columns_v = panels_v.columns;
  return plan;
}

}  // namespace flashjit::generator
