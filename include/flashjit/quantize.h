// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values of 16 bits made e4m3 or e5m2, with scales, rotary embedding and a rotation that spreads
// outliers.
#pragma once

#include <cstdint>
#include <optional>

#include "flashjit/tensor.h"

namespace flashjit {

// What has a scale of its own, and so the shape of the scales, f32.
enum class ScaleOf {
  tensor,  // all of x: [1]
  head,    // each head of a batch entry: [batch, num_heads]
  block,   // of a head block_size rows, the last time fewer: [batch, num_heads, ceil(seqlen / block_size)]
};

struct QuantizeOptions {
  ScaleOf scale_of = ScaleOf::head;
  // Rows of a block, at least 1; 0 unless scale_of is block. Multiples of 16 up to 128 are fastest.
  std::int64_t block_size = 0;
  // Whether scales are there and only read: positive normal numbers. Default: they are written, of what has a scale the
  // largest magnitude over 448, of e5m2 57344, at least 2^-126, and 1 where all is 0.
  bool scale_is_given = false;
  // Rotates each row, so that one outlier becomes many small numbers (FlashAttention-3's incoherent processing): row x
  // becomes H diag(s) x / sqrt(p). p is the largest power of two that divides head_dim: of the elements of a row each p
  // that follow one another are rotated by themselves. H is the Hadamard matrix, H[i][j] = -1 to the number of bits
  // that i and j have in common; s are the signs that rotation_sign tells of this seed. The same seed leaves products
  // of queries and keys as they were, but for rounding. Default: no rotation.
  std::optional<std::uint64_t> rotation_seed;
  // Rotary embedding before that, as of AppendOptions: f16, bf16 or f32 [positions, rotary_dim / 2]. What turns is
  // rounded to the dtype of x, as append does it. Both or none. Default: none.
  std::optional<Tensor> rotary_cos, rotary_sin;
  bool rotary_interleaved = false;
  // The position of each token: i32 or i64 [batch * seqlen], contiguous. Must be given for x of three dimensions.
  // Default: a row's place in its batch entry. Only beside rotary_cos.
  std::optional<Tensor> positions;
  // The call is asynchronous on this stream.
  Stream stream = nullptr;
};

// Writes x in 8 bits: what x becomes is about out times its scale.
//   x      [batch, seqlen, num_heads, head_dim]  f16 or bf16; also [total, num_heads, head_dim], which is a batch of 1
//   out    the shape of x                        e4m3 or e5m2
//   scale  f32, of the shape that scale_of says; of x of three dimensions without the first, of a tensor [1]
// The numbers, f32 by then, are multiplied by the scale's reciprocal and rounded to the nearest number of out's dtype,
// to an even one half way, in magnitude to at most 448, of e5m2 57344. NaN stays NaN and counts for no scale; infinity
// becomes the largest number and counts as the largest float; rotated, either may reach all elements of its row.
// head_dim is a multiple of 16 up to 256. Blocks of scales of packed sequences are counted through all of them. Views
// are as of attention: the last dimension contiguous, pointers 16-byte aligned, strides multiples of 8 elements, of out
// 16; those of scales are any. x is read once for given scales and for those of blocks, of which rows beyond 128 come
// from the L2 a second time; else twice, by two launches, for which memory of a few numbers is allocated in the
// stream's order. x without elements writes nothing. Equal calls give equal bits. A kernel for each dtype, head dim and
// kind of call is compiled once, or loaded from the cache; once that has been called, calls may be captured in a CUDA
// graph. Takes compute capability 8.9 or more. With EngineOptions::check_pages given scales are looked at first.
// Thread-safe. Throws Error; then nothing was written.
void quantize(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts = {});

// The same into new tensors, packed, on opts.stream, of dtype, e4m3 or e5m2. Scales must not be given.
struct Quantized {
  DeviceTensor out, scale;
};
Quantized quantize(const Tensor& x, const QuantizeOptions& opts = {}, DType dtype = DType::e4m3);

// The shape that scales of such a call have. Throws Error(invalid_argument).
Dims quantize_scale_shape(const Tensor& x, const QuantizeOptions& opts);

// The sign, 1 or -1, of this element of rows that are rotated: -1 where bit i % 32 of word i / 32 % 4 is set in the
// block of Philox4x32 with seven rounds (see dropout.h) of the counter i / 128, 0, 0, 0 and the key that the lower and
// the upper half of seed are.
int rotation_sign(std::uint64_t seed, std::int64_t element);

}  // namespace flashjit
