// SPDX-License-Identifier: Apache-2.0
// What each family knows of its own backward kernels: generator/kernels/<family>_backward.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashjit/backward.h"
#include "generator/backward.h"
#include "generator/source.h"
#include "generator/source_parts.h"

namespace flashjit::generator {

constexpr const char* family_name(const MmaBackwardVariant&) { return "mma"; }
constexpr const char* family_name(const HopperBackwardVariant&) { return "hopper"; }

std::string spell_variant(const MmaBackwardVariant& variant);
std::string spell_variant(const HopperBackwardVariant& variant);
// The field that the part of a spelling names, which has its value then; null: none.
const void* read_part(std::string_view part, MmaBackwardVariant& variant);
const void* read_part(std::string_view part, HopperBackwardVariant& variant);

// The fastest that is legal. Of the Hopper family there may be none.
MmaBackwardVariant default_mma_backward(const Problem& problem, const Architecture& architecture);
HopperBackwardVariant default_hopper_backward(const Problem& problem, std::int64_t seqlen_q);

// Considered beside the defaults. Some may be illegal.
std::vector<MmaBackwardVariant> mma_backward_candidates();
std::vector<HopperBackwardVariant> hopper_backward_candidates(const Problem& problem);
// What limits a kernel: shared memory of a thread block; registers in which a thread has dK, dV and scores, and what is
// read and written of shared memory for 1000 operations, both 0 where there is no model.
struct BackwardEstimate {
  int smem_bytes = 0;
  int sum_registers = 0;
  double smem_bytes_per_kflop = 0;
};
BackwardEstimate backward_estimate(const Problem& problem, const MmaBackwardVariant& variant);
BackwardEstimate backward_estimate(const Problem& problem, const HopperBackwardVariant& variant);

// Of head dims above 256, each gradient by a kernel of its own: generator/kernels/<family>_large_backward.cpp.
int large_backward_smem_bytes(const Problem& problem);
std::string why_illegal_large_backward(const Problem& problem, const HopperBackwardVariant& variant);
BackwardEstimate large_backward_estimate(const Problem& problem, const MmaBackwardVariant& variant);
std::string why_not_of_large_backward(const MmaBackwardVariant& variant);
// gradients: of a pass. config: what is the family's.
PlainKernel render_large_backward(const Problem& problem, const MmaBackwardVariant& variant,
                                  const KernelGradients& gradients, ConfigText config, const Architecture& architecture,
                                  const Templates& templates);
PlainKernel render_large_backward(const Problem& problem, const HopperBackwardVariant& variant,
                                  const KernelGradients& gradients, ConfigText config, const Architecture& architecture,
                                  const Templates& templates);

// As of generator/backward.h.
std::string why_illegal(const Problem& problem, const MmaBackwardVariant& variant, const Architecture& architecture);
std::string why_illegal(const Problem& problem, const HopperBackwardVariant& variant, const Architecture& architecture);
QueryLayout query_layout(const Problem& problem, const MmaBackwardVariant& variant);
QueryLayout query_layout(const Problem& problem, const HopperBackwardVariant& variant);
PlainKernel render_backward(const Problem& problem, const MmaBackwardVariant& variant, const KernelGradients& gradients,
                            const Architecture& architecture, const Templates& templates);
PlainKernel render_backward(const Problem& problem, const HopperBackwardVariant& variant,
                            const KernelGradients& gradients, const Architecture& architecture,
                            const Templates& templates);
// What all of them are told by struct Config.
ConfigText backward_config(const Problem& problem, const KernelGradients& gradients);
// The name and the entry of a source.
Source named_backward_source(const Problem& problem, const KernelGradients& gradients, const std::string& variant,
                             const Architecture& architecture);

}  // namespace flashjit::generator
