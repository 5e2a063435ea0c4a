// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, on the default engine.
#pragma once

#include <optional>

#include "flashjit/attention.h"
#include "flashjit/tensor.h"

namespace flashjit {

// Where gradients of q, k and v go; those that are empty are not computed. Shapes and strides as of the tensors that
// they are of, which they must not overlap. dq has the dtype of q; dk and dv that of k, or both are f32.
struct GradientTensors {
  std::optional<Tensor> dq, dk, dv;
};

// In memory of their own, packed, in the dtypes of q, k and v.
struct Gradients {
  DeviceTensor dq, dk, dv;
};

// Gradients of a number that depends on the output of attention(q, k, v, opts) by dout, and on its LSE by dlse.
//   dout, out  [batch, seqlen_q, num_heads_q, head_dim_v]  the dtype of q; what the call gave
//   lse, dlse  [batch, num_heads_q, seqlen_q]              f32; likewise. Without dlse nothing depends on the LSE
// opts as of that call, but for lse, which is empty. Key/value heads get the sums of their groups' gradients. A bias,
// slopes and sinks act, and get no gradients; block_mask is not used.
// Kernels are of the mma.sync family on all architectures. There are none yet for score, for ragged batches and for k
// and v of e4m3: Error(unsupported) names the option; plan, variant and fixed_split_size must not be given. dq is a sum
// by atomic additions in f32, whose order, and so its last bits, may differ from run to run; dk and dv do not. The call
// allocates head_dim + 2 floats for each row of q in stream order, and frees them. Thread-safe. Throws Error; after an
// error of arguments nothing was written.
Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse, const AttentionOptions& opts = {},
                             const std::optional<Tensor>& dlse = {});
// The same into memory of the caller.
void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const GradientTensors& into, const AttentionOptions& opts = {},
                        const std::optional<Tensor>& dlse = {});

}  // namespace flashjit
