// SPDX-License-Identifier: Apache-2.0
// The kernels that make gradients, of all families.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashjit/backward.h"
#include "generator/source.h"

namespace flashjit::generator {

// What of a problem its backward kernel knows: not what stands in the LSE already.
Problem backward_problem(const Problem& problem);

// From so many queries on the fastest tiles are the same for all calls.
constexpr std::int64_t kManyQueries = 2048;
// has_tensor_maps: whether the call's tensors may have them.
BackwardVariant default_backward_variant(const Problem& problem, const Architecture& architecture,
                                         std::int64_t seqlen_q = kManyQueries, bool has_tensor_maps = true);
// What calls for the problem take, each once: of many queries, of fewer, and of so few that they do not suit the Hopper
// family.
std::vector<BackwardVariant> default_backward_variants(const Problem& problem, const Architecture& architecture);
// Empty where there is such a kernel, else one line that says why not.
std::string why_illegal(const Problem& problem, const BackwardVariant& variant, const Architecture& architecture);
// Throws Error(invalid_argument) with that line, and what validate throws.
void require_legal(const BackwardProblem& problem, const BackwardVariant& variant, const Architecture& architecture);

// How a kernel has what belongs to queries, in f32, of [batch, head, padded query]: LSE, row sums, and with columns dQ
// before it is rounded.
struct QueryLayout {
  int rows = 1;           // of which a head's queries are padded to a multiple
  int columns;            // of dQ; 0: its sums need no memory
  bool is_whole = false;  // whether no kernel need stand before it and behind it, but for counters that are 0
  int adders;             // that take turns at the dQ of a tile of queries, where that is deterministic
};
QueryLayout query_layout(const Problem& problem, const BackwardVariant& variant);
// In which tiles of keys are taken, by measurement: docs/kernels/backward.md. longest_first: those of several heads by
// turns, which is also how tiles of one head wait less for each other.
TileOrder backward_order(const Problem& problem, bool deterministic);
// Where the arguments of a kernel of the hopper family have the BackwardRowTiles of a ragged batch.
std::size_t row_tiles_offset(const Problem& problem);
int block_q(const BackwardVariant& variant) noexcept;
int block_kv(const BackwardVariant& variant) noexcept;

// Where no register file holds the sums of more than one gradient, each has a kernel of its own.
enum class GradientPass { all, values, keys, queries };

// What a kernel makes, beside dq, and how.
struct KernelGradients {
  DType of_keys;                      // dtype of dk and dv: of k and v, or f32
  bool slopes = false, bias = false;  // which the mma family alone has
  bool deterministic = false;         // dq is summed in the same order in every run
  GradientPass pass = GradientPass::all;
};
std::string to_string(const KernelGradients& gradients);  // "bf16-dslopes-dbias-deterministic"
KernelGradients kernel_gradients(const BackwardProblem& problem) noexcept;
// Those of each kernel that shares them out, the one of keys first; where one has them all, that alone.
std::vector<KernelGradients> shared_out(const Problem& problem, const KernelGradients& gradients);
KernelGradients of_pass(const Problem& problem, const KernelGradients& gradients, GradientPass pass);

// problem: of backward_problem, without scores of users'. variant: a legal one.
PlainKernel render_backward(const Problem& problem, const BackwardVariant& variant, const KernelGradients& gradients,
                            const Architecture& architecture, const Templates& templates = embedded_templates());
// Where it is not whole: what goes row by row through queries before it, and behind it where their gradients are
// wanted. dtype: of q.
PlainKernel render_backward_prepare(DType dtype, const Architecture& architecture,
                                    const Templates& templates = embedded_templates());
PlainKernel render_backward_finish(DType dtype, const Architecture& architecture,
                                   const Templates& templates = embedded_templates());
// Behind it: the gradients of sinks; the sums of those of slopes; that of a bias in its dtype.
PlainKernel render_sink_gradients(const Architecture& architecture, const Templates& templates = embedded_templates());
PlainKernel render_slope_gradients(const Architecture& architecture, const Templates& templates = embedded_templates());
PlainKernel render_bias_gradient(DType dtype, const Architecture& architecture,
                                 const Templates& templates = embedded_templates());
// Before it, of a ragged batch: what makes rows of dk or dv 0.
PlainKernel render_backward_clear_rows(DType dtype, const Architecture& architecture,
                                       const Templates& templates = embedded_templates());
// What makes words 0.
PlainKernel render_backward_clear(const Architecture& architecture, const Templates& templates = embedded_templates());

}  // namespace flashjit::generator
