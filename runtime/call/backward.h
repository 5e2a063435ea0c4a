// SPDX-License-Identifier: Apache-2.0
// A call for gradients: checked, and as launches.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "flashjit/backward.h"
#include "runtime/call/operation.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

// As its caller gave it.
struct GivenGradients {
  const Tensor &dout, &q, &k, &v, &out, &lse;
  const GradientTensors& into;
  const AttentionOptions& opts;
  const BackwardOptions& backward;
};

// Memory that its launches share: f32, packed, by the layout of the variant.
struct BackwardScratch {
  Tensor rows;  // LSE and row sums, of [batch, num_heads_q, padded seqlen_q] each, and counters
  Tensor dq;    // [batch, num_heads_q, padded seqlen_q, columns]; empty where it is not wanted
  // Likewise empty: sums of the kernel for the gradients of options, see runtime/call/option_gradients.h.
  Tensor slopes, bias;
  Tensor key_tiles, row_tiles;  // of a ragged batch: runtime/call/ragged_backward.h

  std::array<Tensor*, 6> all() noexcept { return {&rows, &dq, &slopes, &bias, &key_tiles, &row_tiles}; }
};

// Points into the caller's tensors and lives no longer than the call.
struct BackwardCall {
  ForwardCall forward;  // with what the backward kernel knows of its problem
  const GivenGradients& given;
  BackwardVariant variant;           // once it was chosen
  std::int64_t resident_blocks = 0;  // likewise: of a launch whose blocks take tiles one after the other
  BackwardScratch scratch;
  DType key_gradient = DType::f32;  // of dk and dv

  bool has_rows() const noexcept;  // tensors have, also where no sequence does
  bool nothing_to_do() const noexcept;
};
// Without variant and scratch. Throws Error(invalid_argument), and Error(unsupported) for what has no backward kernels.
BackwardCall validate_backward(const GivenGradients& given);
// The asked one, or a record's where the call's tensors have what that wants of them, or the default. resident_blocks:
// that the device runs at once where an SM has room for one. Throws Error(invalid_argument).
void choose_variant(BackwardCall& call, const Architecture& architecture, std::int64_t resident_blocks,
                    const std::optional<BackwardVariant>& recorded = {});
// What of it is compiled in.
BackwardProblem problem_of(const BackwardCall& call);
// What it takes, without memory; and then with it, before the launches are made.
BackwardScratch backward_scratch(const BackwardCall& call);
void add_scratch(BackwardCall& call, const BackwardScratch& scratch);

// Whether the launch of gradients prepares its rows and finishes dq itself.
bool is_whole(const BackwardCall& call);
// Whether dq, dk and dv have a launch each, which finishes it.
bool is_in_passes(const BackwardCall& call);
// Of f32.
float* floats(const Tensor& tensor);
// In the memory of rows.
std::int64_t padded_seqlen(const BackwardCall& call);
float* lse_log2(const BackwardCall& call);
float* row_sums(const BackwardCall& call);

// Words that are to be 0.
PlainLaunch make_clear_launch(unsigned* words, std::int64_t count, const Architecture& architecture,
                              PlainKernels& kernels);
PlainLaunch make_counters_clear_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels);
PlainLaunch make_backward_prepare_launch(const BackwardCall& call, const Architecture& architecture,
                                         PlainKernels& kernels);
PlainLaunch make_backward_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
PlainLaunch make_value_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels);
PlainLaunch make_key_gradient_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
PlainLaunch make_query_gradient_launch(const BackwardCall& call, const Architecture& architecture,
                                       PlainKernels& kernels);
PlainLaunch make_backward_finish_launch(const BackwardCall& call, const Architecture& architecture,
                                        PlainKernels& kernels);
// What makes the launches of a call, one after the other: those above that it wants, and those of its options.
using MakeBackwardLaunch = PlainLaunch (*)(const BackwardCall&, const Architecture&, PlainKernels&);
std::vector<MakeBackwardLaunch> backward_launches(const BackwardCall& call);

}  // namespace flashjit::runtime
