// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU in double precision: the oracle for tests, and the way out on machines without a GPU.
#pragma once

#include <optional>
#include <vector>

#include "flashjit/append.h"
#include "flashjit/attention.h"
#include "flashjit/quantize.h"
#include "flashjit/tensor.h"

namespace flashjit::reference {

struct Result {
  Dims shape;               // [batch, seqlen_q, num_heads_q, head_dim_v]; without batch where q is packed without one
  std::vector<double> out;  // packed
  std::vector<double> lse;  // packed [batch, num_heads_q, seqlen_q], natural logarithm
  // Of attention_in_low_precision() with q of e4m3: how far rounding of probabilities takes each of out, to either
  // side. Else empty.
  std::vector<double> spread = {};
};

// What flashjit::attention computes, from host memory: shapes, strides and options mean the same; opts.stream,
// opts.variant, opts.block_mask and opts.lse are not used. f16, bf16, f32 and f64 inputs, and q of e4m3 as there; any
// head_dim from 1. Uses all cores; thread-safe. Throws Error(invalid_argument), and for opts.score and opts.mask, which
// need a compiler, Error(unsupported).
Result attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});

// The same formula with what low precision does to it: scores in f32, tanh to 11 binary digits, probabilities rounded
// to the dtype of q before the product with v, the result rounded to its own. Its distance from attention() is the
// yardstick for a kernel's. Rounding to e4m3, where q has it, is coarse, and to which side is chance: the result is
// without it, and Result::spread says how far it goes.
Result attention_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});

// Gradients of a number that depends on the output by dout and on the LSE by dlse, packed in the shapes of what they
// are of; empty where there is no such option.
struct Gradients {
  std::vector<double> dq, dk, dv;
  std::vector<double> dslopes, dsinks, dbias;
};
// Of attention() with these inputs and options, from host memory. dout has the shape of the output, any of these
// dtypes; dlse is f32 or f64 in the shape of the LSE, without it 0. What stands for several rows, keys, heads or batch
// entries gets the sum of their gradients, added in one order; rows that belong to no sequence get 0. Not of k and v of
// e4m3. Thread-safe, uses all cores. Throws Error(invalid_argument), and for opts.score and opts.mask
// Error(unsupported).
Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionOptions& opts = {}, const std::optional<Tensor>& dlse = {});
// The same with what low precision does to it: as attention_in_low_precision, with gradients of scores rounded to the
// dtype of q before they are multiplied, and an output that was rounded to it.
Gradients attention_backward_in_low_precision(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                              const AttentionOptions& opts = {},
                                              const std::optional<Tensor>& dlse = {});

// What flashjit::merge computes of results over parts of the keys, in double precision. At least one, all of one shape.
// Throws Error(invalid_argument).
Result merge(const std::vector<Result>& parts);

// What flashjit::append writes, into caches in host memory: shapes, strides and options mean the same; opts.stream is
// not used. What turns is computed in double precision and rounded once. Throws Error(invalid_argument).
void append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const AppendOptions& opts);

// What flashjit::quantize writes, into host memory, in double precision but for what turns, which is rounded to the
// dtype of x; opts.stream is not used. Throws Error(invalid_argument), for a given scale that is not positive, too.
void quantize(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts = {});

// A kernel's output against the two results above, by the rule of FlashAttention's tests:
//   max|out - exact| <= 2 * max(|low - exact| + spread) + atol
// where atol is two roundings of the largest output in the dtype. Where low has a spread it is the rule of every 16
// queries by themselves: those that see few keys have the largest spreads, in which lost keys of all others would pass.
// What is returned is then of those that are farthest beyond their bound, or nearest to it.
struct Comparison {
  double max_error = 0;
  double bound = 0;
  bool passed = false;  // false for NaN too, but where the exact result is NaN
};
Comparison compare(const HostTensor& out, const Result& exact, const Result& low);
// A gradient, by the same rule.
Comparison compare(const HostTensor& gradient, const std::vector<double>& exact, const std::vector<double>& low);
// Absolute difference of the natural-log LSE, by the same rule; infinities must agree exactly. lse has the shape that
// flashjit::attention gives it.
Comparison compare_lse(const HostTensor& lse, const Result& exact, const Result& low);

}  // namespace flashjit::reference
