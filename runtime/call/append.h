// SPDX-License-Identifier: Apache-2.0
// A call that writes new keys and values into a cache: checked, and as a launch.
#pragma once

#include <cstdint>

#include "flashjit/append.h"
#include "runtime/call/operands.h"
#include "runtime/call/operation.h"
#include "runtime/call/scales.h"

namespace flashjit::runtime {

// Points into itself and the caller's tensors and lives no longer than these.
struct AppendCall {
  // Throws Error(invalid_argument).
  AppendCall(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const AppendOptions& opts);
  AppendCall(const AppendCall&) = delete;

  Tensor k, v, q, q_out, k_rotary;  // of four dimensions; empty where there are none
  const Tensor &k_cache, &v_cache;
  const AppendOptions& opts;
  Operands operands;
  std::int64_t batch = 0;  // sequences; 0 beside slots

  GivenScales scales() const noexcept { return {opts.k_scale, opts.v_scale}; }
  // Whether values are what stands in the cache of keys.
  bool has_one_cache() const noexcept;
  // What turns, and so do queries.
  const Tensor& turning_keys() const noexcept { return opts.k_rotary ? k_rotary : k; }
  std::int64_t tokens() const noexcept { return k.shape[batch_dim] * k.shape[seqlen_dim]; }
  std::int64_t heads_of_token() const noexcept;  // of all that is written
  // Rows that a sequence may have.
  std::int64_t rows_of_sequence() const noexcept;
  bool nothing_to_do() const noexcept { return tokens() == 0 || heads_of_token() == 0; }
};

// Throws Error(invalid_argument, unsupported).
const generator::PlainKernel& append_kernel(const AppendProblem& problem, const Architecture& architecture,
                                            PlainKernels& kernels);
PlainLaunch make_append_launch(const AppendCall& call, const Architecture& architecture, PlainKernels& kernels);

}  // namespace flashjit::runtime
