// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, on the default engine, and what their kernels are made for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "flashjit/attention.h"
#include "flashjit/problem.h"
#include "flashjit/tensor.h"

namespace flashjit {

// Where gradients of q, k and v go; those that are empty are not computed. Each has the shape of the tensor that it is
// of, any strides that this could have, and no part in any other tensor of the call. dq has the dtype of q; dk and dv
// that of k, or both are f32. Those of options want the option: of the bias, which is of its dtype or f32, of
// alibi_slopes and of sinks, which are f32. Each number gets the sum over all that it stands for.
struct GradientTensors {
  std::optional<Tensor> dq, dk, dv;
  std::optional<Tensor> dbias = std::nullopt, dslopes = std::nullopt, dsinks = std::nullopt;
};

// How the kernel is tuned that makes dq, dk and dv, or of head dims above 256 those that make one of them each. That of
// the mma.sync family, for all architectures: mma-q64-kv128-w8-r1-s1
struct MmaBackwardVariant {
  int block_q = 64;    // queries of one step, or of a block for dq: a multiple of 16 up to 128, above 256 up to 64
  int block_kv = 128;  // keys and values of a thread block, or of one step for dq: likewise
  int warps = 8;       // 4 or 8, which share out all products alike
  int row_tiles = 1;   // tiles of 16 rows that a warp has of each product: 1 or 2
  int stages = 1;      // tiles of queries in shared memory, above 256 pairs of pieces of tiles: 1 or 2
};
// That of the Hopper family, for sm_90a, masks that are spans of keys (causal, window, chunk, prefix), head dims that
// are both up to 64, both up to 128 with a head_dim above 64, both from 200 to 256, or above 256 and equal, and tensors
// q, k, v, dout and out that have no stride of 0 and, but of head dims above 256, are not empty: hopper-q64-kv128
struct HopperBackwardVariant {
  int block_q = 64;    // queries of one step: 64 for a head_dim above 64, or 80 up to 128; else 128
  int block_kv = 128;  // keys and values of a thread block: 128 for head dims up to 128, else 64
};
bool operator==(const MmaBackwardVariant& a, const MmaBackwardVariant& b) noexcept;
bool operator==(const HopperBackwardVariant& a, const HopperBackwardVariant& b) noexcept;
inline bool operator!=(const MmaBackwardVariant& a, const MmaBackwardVariant& b) noexcept { return !(a == b); }
inline bool operator!=(const HopperBackwardVariant& a, const HopperBackwardVariant& b) noexcept { return !(a == b); }

using BackwardVariant = std::variant<MmaBackwardVariant, HopperBackwardVariant>;
std::string to_string(const BackwardVariant& variant);
// Reads that spelling; parts that are not named are as above, whatever head dims want, and without a family in front it
// is of mma. Throws Error(invalid_argument).
BackwardVariant parse_backward_variant(std::string_view text);

// What is compiled into the kernels of calls for gradients: what the call of attention was, and what of gradients
// changes the source. All else is up to each call, as of Problem.
struct BackwardProblem {
  Problem attention;    // of the call whose gradients they are
  bool f32 = false;     // dk and dv are f32
  bool slopes = false;  // there is dslopes, too, of a problem with alibi,
  bool bias = false;    // dbias, of one with a bias,
  bool sinks = false;   // and dsinks, of one with sinks
  bool deterministic = false;

  friend bool operator==(const BackwardProblem& a, const BackwardProblem& b) noexcept {
    return a.attention == b.attention && a.f32 == b.f32 && a.slopes == b.slopes && a.bias == b.bias &&
           a.sinks == b.sinks && a.deterministic == b.deterministic;
  }
};
// "bwd-bf16-d128-causal", "bwd-bf16-d64-alibi-f32-dslopes-deterministic": that of the problem, and behind it these.
std::string to_string(const BackwardProblem& problem);
// Reads that spelling and no other, of what parse_problem reads. Throws Error(invalid_argument).
BackwardProblem parse_backward_problem(std::string_view text);
// Throws Error(invalid_argument) which names the field, and Error(unsupported) for what has no backward kernels.
void validate(const BackwardProblem& problem);

using BackwardVariantExplanation = VariantExplanationOf<BackwardVariant>;

struct BackwardOptions {
  std::optional<Tensor> dlse;              // by which the number depends on the LSE; without it it does not
  std::optional<BackwardVariant> variant;  // without it the library chooses
  bool deterministic = false;              // all gradients are the same, bit by bit, in every run with the same inputs
};

// In memory of their own, packed, in the dtypes of q, k and v. Those of options go into the caller's memory alone.
struct Gradients {
  DeviceTensor dq, dk, dv;
};

// Gradients of a number that depends on the output of attention(q, k, v, opts) by dout, and on its LSE by dlse of
// the backward options.
//   dout, out  [batch, seqlen_q, num_heads_q, head_dim_v]  the dtype of q; out is what the call gave. Strides as of out
//                                                          there: the last dimension is contiguous
//   lse, dlse  [batch, num_heads_q, seqlen_q]              f32; likewise, natural logarithm
// Where the call's tensors lack the batch, beside cu_seqlens, so do these. Rows and keys that belong to no sequence get
// gradients of 0, whatever stands in them.
// opts as of that call, with its dropout, but without lse, plan, variant and fixed_split_size, which must not be given.
// Key/value heads get the sums of their groups' gradients. mask, as text, acts; block_mask is not used. score, as text,
// is differentiated by the score, as docs/masks-and-scores.md says; what it captures gets no gradient, and a function
// in it that has no derivative is Error(compile_failed). page_table, batch_indices_kv and k and v of e4m3 have no
// kernels yet: Error(unsupported) names the option. Ragged batches of head dims up to 256 get a kernel of mma.sync
// unless another is named.
//
// Kernels are made at the first call, or ahead of it by Engine::prepare_backward: of the Hopper family where that has
// them and there are 64 queries or more, or a head dim is above 256, else of mma.sync. dq is a sum by atomic additions
// in f32, whose order, and so its last bits, may differ from run to run, and so is dbias where the bias stands for more
// than one batch entry, head or query; the others do not. deterministic: thread blocks add to a row of dq one after the
// other, always in the same order, whatever else runs on the GPU; such a dbias is refused by Error(unsupported).
// docs/kernels/backward.md says what it costs.
//
// The call allocates in stream order, and frees, two floats for each row of q, and for dq, but of head dims above 256,
// head_dim more; the Hopper family pads rows to a multiple of 64 or 128, and a head_dim above 64 to 128, above 128 to
// 256, and has two counters for each head of k. A deterministic dq has one or two counters more for each head and tile
// of queries. For dslopes there are four or eight floats more for each query head of a batch entry and each tile of
// keys, and for a dbias that is not f32 and packed as many as it has elements. A ragged batch has 48 bytes more for
// each tile of keys and each sequence, and where tiles are padded one tile more for each sequence.
//
// Probabilities are computed anew from scores and LSE, whose roundings in f32 do not cancel, nor does what tensor cores
// cut off of scores, up to 2^-23 of them at every 16 columns: at head dim 64 with an LSE of 10,000 in magnitude
// gradients are as right as elsewhere, from 2^17 on they lose digits, and far beyond that they are wrong and may be
// infinite or NaN; at head dim 512 all that begins at an eighth of these. So hide keys by a mask, or by a bias of
// -infinity or down to -65504, and not by one of -1e9, in rows that see nothing else. NaN and infinity in q, k, v or
// dout may reach all gradients of their batch entry and heads: a key of -infinity, too, whose probabilities are 0.
//
// Thread-safe. Throws Error; after an error of arguments nothing was written.
Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse, const AttentionOptions& opts = {},
                             const BackwardOptions& backward = {});
// The same into memory of the caller.
void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const GradientTensors& into, const AttentionOptions& opts = {},
                        const BackwardOptions& backward = {});

}  // namespace flashjit
