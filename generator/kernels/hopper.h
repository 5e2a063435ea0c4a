// SPDX-License-Identifier: Apache-2.0
// What the host knows of all forward kernels of the Hopper family.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.h"
#include "generator/family.h"
#include "generator/plan.h"
#include "generator/source_parts.h"
#include "generator/spec.h"

namespace flashjit::generator {

inline constexpr int kElementBytes = 2;
inline constexpr int kWarpgroupRows = 64;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kSwizzleBytes = 1024;  // after which the widest one repeats

inline int round_up(int bytes, int unit) { return (bytes + unit - 1) / unit * unit; }

// --- Large heads, which have a kernel of their own: hopper_large.cpp -------------------------------------------------

Plan make_large_plan(const Problem& problem, const HopperVariant& variant);
std::string why_illegal_large(const Problem& problem, const HopperVariant& variant);
std::vector<Candidate> large_candidates(const Problem& problem);
// What stands behind the template. config: with the tunables.
std::string render_large_kernel(const KernelSpec& spec, const HopperVariant& variant, std::string_view entry,
                                ConfigText config);

}  // namespace flashjit::generator
