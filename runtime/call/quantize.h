// SPDX-License-Identifier: Apache-2.0
// A call that makes rows e4m3: checked, and as launches.
#pragma once

#include <array>
#include <cstdint>

#include "flashjit/quantize.h"
#include "runtime/call/check_sequences.h"
#include "runtime/call/operands.h"
#include "runtime/call/operation.h"
#include "runtime/call/rotary.h"

namespace flashjit::runtime {

// The signs of the elements of rows that are rotated, a bit each: set means -1.
std::array<std::uint32_t, generator::kQuantizeMaxHeadDim / 32> rotation_signs(std::uint64_t seed) noexcept;
// Elements that are rotated together.
std::int64_t rotated_part(std::int64_t head_dim) noexcept;

// Points into itself and the caller's tensors and lives no longer than these.
struct QuantizeCall {
  // Throws Error(invalid_argument).
  QuantizeCall(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts);
  QuantizeCall(const QuantizeCall&) = delete;

  Tensor x, out;  // of four dimensions
  Tensor scales;  // as [batch, seqlen, num_heads], where a block is a row, with strides of 0 where one stands for all
  const QuantizeOptions& opts;
  Operands operands;
  Tensor maxima;  // f32, of shares; without data until it is added

  GivenRotary rotary() const noexcept { return GivenRotary(opts); }
  bool nothing_to_do() const noexcept;
  // Of blocks, which a thread block has one after the other; of blocks with a scale those.
  std::int64_t rows_of_block() const noexcept;
  std::int64_t blocks_of_head() const noexcept;
  std::int64_t blocks() const noexcept;
  // Whether another launch has to find maxima first, and memory for these: [scales, shares]. Add what it is given.
  bool needs_maxima() const noexcept { return !opts.scale_is_given && opts.scale_of != ScaleOf::block; }
  Dims maxima_shape() const noexcept;
  void add_maxima(const Tensor& memory);
};

// The shape that scales of this x have, of three or four dimensions. Throws Error(invalid_argument).
Dims scale_shape(const Tensor& x, const QuantizeOptions& opts);
// Looks at given scales. Throws Error(invalid_argument).
void check_given_scales(const QuantizeCall& call, const ReadInts& read);

// resident_blocks: that the device runs at once where a multiprocessor has room for one.
PlainLaunch make_quantize_launch(const QuantizeCall& call, generator::QuantizePass pass,
                                 const Architecture& architecture, std::int64_t resident_blocks, PlainKernels& kernels);
// What writes the rows of this call.
generator::QuantizePass last_pass(const QuantizeCall& call) noexcept;

}  // namespace flashjit::runtime
