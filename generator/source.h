// SPDX-License-Identifier: Apache-2.0
// The spec of a kernel -> one self-contained CUDA source. Pure: no files, no environment, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generator/spec.h"
#include "generator/templates.h"

namespace flashjit::generator {

struct Source {
  std::string name;   // readable: problem, variant, architecture
  std::string entry;  // the extern "C" symbol of the kernel
  // The text in three parts, so that a look-up in the cache need not put it together: the second has almost all of it,
  // and kernels share it.
  std::string heading;
  std::shared_ptr<const std::string> device_code;
  std::string generated;

  std::string text() const;
};

// The forward kernel. Equal inputs give equal bytes.
Source render_forward(const KernelSpec& spec, const Templates& templates = embedded_templates());

// A kernel beside those of attention, by the functions that a problem has.
struct PlainKernel {
  Source source;
  int threads;                 // of a block
  std::size_t argument_bytes;  // of a launch: the kernel's struct of abi.cuh, and behind it those of the functions
  int smem_bytes;              // dynamic shared memory of a block
  int blocks_of_sm = 0;        // that are to run there at once; 0: as it comes
};
// The kernels that calls launch, each in its turn.
enum class Turn : std::uint8_t { batch_plan, attention, combine };
inline constexpr std::size_t kTurns = 3;
// Of these what stands beside attention in calls of a kernel.
struct TurnKernel {
  Turn turn;
  PlainKernel kernel;
};
std::vector<TurnKernel> render_beside(const KernelSpec& spec, const Templates& templates = embedded_templates());

// The problem with its predicates alone, and what makes a block mask of them.
Problem predicates_of(const Problem& problem);
PlainKernel render_block_mask(const Problem& predicates, const Architecture& architecture,
                              const Templates& templates = embedded_templates());
// What makes the list of tiles of a ragged batch.
PlainKernel render_batch_plan(const Architecture& architecture, const Templates& templates = embedded_templates());
// What joins the partial results of split keys.
PlainKernel render_combine(const Problem& problem, const Architecture& architecture,
                           const Templates& templates = embedded_templates());
// The problem with its users' functions alone, and what applies them to scores, and differentiates them.
Problem users_functions_of(const Problem& problem);
PlainKernel render_function_scores(const Problem& functions, bool differentiates, const Architecture& architecture,
                                   const Templates& templates = embedded_templates());

// Joins partial results of one dtype to one of another or the same: f16, bf16 or f32.
PlainKernel render_merge(DType part, DType whole, const Architecture& architecture,
                         const Templates& templates = embedded_templates());

// Adds rows of one dtype up, to those of another or the same: f16, bf16 or f32.
PlainKernel render_sum(DType part, DType whole, const Architecture& architecture,
                       const Templates& templates = embedded_templates());

// Writes new keys and values, f16 or bf16, into a cache of their dtype or of 8 bits; with rotary embedding it turns
// them by sines and cosines of a dtype.
enum class Rotary : std::uint8_t { none, halves, neighbours };
struct AppendKernel {
  DType dtype;
  Rotary rotary = Rotary::none;
  DType table = dtype;
  DType cache = dtype;  // or e4m3 or e5m2, on architectures that convert to these
};
PlainKernel render_append(const AppendKernel& wanted, const Architecture& architecture,
                          const Templates& templates = embedded_templates());
// Whether an architecture has instructions for these (PTX ISA 8.1, "cvt").
bool converts_to_8_bits(const Architecture& architecture) noexcept;

// Writes rows of f16 or bf16 in e4m3 or e5m2, on architectures that convert to it; with rotary embedding and with a
// rotation.
struct QuantizeKernel {
  DType dtype;
  std::int64_t head_dim;
  bool rotates = false;
  Rotary rotary = Rotary::none;
  DType table = dtype;
  DType stored = DType::e4m3;
};
// Finds the maxima of scales; or writes the rows, by scales that are given, that maxima tell or that rows do.
enum class QuantizePass : std::uint8_t { maxima, by_given, by_maxima, by_rows, by_many_rows };
PlainKernel render_quantize(const QuantizeKernel& wanted, QuantizePass pass, const Architecture& architecture,
                            const Templates& templates = embedded_templates());

// A loop of nothing but mma.sync: what the tensor cores give to this family of kernels. 256 threads a block;
// arguments (float* sink, int iterations); one iteration of one warp is kCeilingFlops floating-point operations.
inline constexpr double kCeilingFlops = 16.0 * 2 * 16 * 8 * 16;
inline constexpr int kCeilingThreads = 256;
Source render_mma_ceiling(DType dtype, const Architecture& architecture,
                          const Templates& templates = embedded_templates());

}  // namespace flashjit::generator
