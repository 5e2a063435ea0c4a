// SPDX-License-Identifier: Apache-2.0
#include "generator/pruning.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/kernels/mma.h"
#include "generator/variant_space.h"

namespace flashjit::generator {
namespace {

using Verdict = VariantExplanation::Verdict;

// Of an SM of sm_90a: 989 TFLOPS of 132 SMs at 1830 MHz; 32 banks of 4 bytes.
constexpr double kFlopsPerCycle = 4096;
constexpr double kSmemBytesPerCycle = 128;
// A loop of nothing but mma.sync, measured: 589 of those 989 TFLOPS.
constexpr double kMmaSyncShare = 0.6;
// 128 FFMA in a cycle.
constexpr double kFmaShare = 2 * 128 / kFlopsPerCycle;

// Tiles of so few rows serve calls of few queries. There memory decides, and the tensor cores wait whatever feeds them.
constexpr int kFewRows = 64;
constexpr double kFarBelow = 1.6;
constexpr int kWarpgroupRows = 64;  // of one wgmma
constexpr int kMmaRows = 16;        // of one mma.sync

// K and V are read once for each group of rows that computes together and written once for each thread block.
double bytes_per_kflop(const Problem& problem, int rows, int block_q, int block_kv, int other_elements) {
  constexpr double kElementBytes = 2;
  const double keys_and_values = 1.0 * block_kv * (problem.head_dim + problem.head_dim_v);
  const double elements = keys_and_values * (1 + 1.0 * rows / block_q) + other_elements;
  return 1000 * kElementBytes * elements / (2 * rows * keys_and_values);
}

double traffic(const Problem& problem, const MmaVariant& v) {
  // Warps that share rows share their reads of K and V, but each reads Q, and P, which is written once.
  const int sharing = is_large(problem) ? kWarpsOfLargeRows : 1;
  const int rows = v.block_q * sharing / v.warps;
  const int probabilities = sharing == 1 ? 0 : (sharing + 1) * rows * v.block_kv;
  const int query = (v.query == QuerySource::shared ? sharing * rows * problem.head_dim : 0) + probabilities;
  return bytes_per_kflop(problem, rows, v.block_q, v.block_kv, query);
}

double traffic(const Problem& problem, const HopperVariant& v) {
  const int rows = std::min(v.block_q, kWarpgroupRows);
  const int query = rows * problem.head_dim;
  const int written_and_read = v.probabilities == ProbabilitySource::shared ? 2 * rows * v.block_kv : 0;
  return bytes_per_kflop(problem, rows, v.block_q, v.block_kv, query + written_and_read);
}

double rate_of_traffic(double smem_bytes_per_kflop) {
  return kSmemBytesPerCycle / (smem_bytes_per_kflop / 1000 * kFlopsPerCycle);
}

double share_of_instruction(const MmaVariant&) { return kMmaSyncShare; }
double share_of_instruction(const HopperVariant& v) {
  return v.block_q >= kWarpgroupRows ? 1 : v.block_q >= kMmaRows ? kMmaSyncShare : kFmaShare;
}

}  // namespace

double smem_bytes_per_kflop(const Problem& problem, const Variant& variant) {
  return std::visit([&](const auto& of_family) { return traffic(problem, of_family); }, variant);
}

// Only for sm_90a: there it was measured, and there wgmma leaves mma.sync behind.
double attainable_rate(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  if (!has_hopper_kernels(architecture)) return 0;
  const double instruction = std::visit([](const auto& of_family) { return share_of_instruction(of_family); }, variant);
  return std::min(instruction, rate_of_traffic(smem_bytes_per_kflop(problem, variant)));
}

double mma_attainable_rate(double smem_bytes_per_kflop) {
  return std::min(kMmaSyncShare, rate_of_traffic(smem_bytes_per_kflop));
}

std::string why_far_below(double attainable_rate, double best) {
  return fmt::format("reaches at most {:.0f} % of the tensor cores' peak, the best {:.0f} %", 100 * attainable_rate,
                     100 * best);
}

void prune(std::vector<VariantExplanation>& variants, std::size_t spared) {
  double best = 0;
  for (const VariantExplanation& each : variants)
    if (each.verdict == Verdict::kept) best = std::max(best, each.attainable_rate);
  for (std::size_t i = spared; i < variants.size(); ++i) {
    VariantExplanation& each = variants[i];
    const bool far_below = each.attainable_rate * kFarBelow < best;
    if (each.verdict != Verdict::kept || !far_below || block_q(each.variant) <= kFewRows) continue;
    each.verdict = Verdict::pruned;
    each.reason = why_far_below(each.attainable_rate, best);
  }
}

}  // namespace flashjit::generator
