// SPDX-License-Identifier: Apache-2.0
// New keys and values written into the cache that attention reads, in pages or not, with rotary embedding or without.
#pragma once

#include <optional>

#include "flashjit/tensor.h"

namespace flashjit {

// Where new tokens go, and what becomes of them on the way. Whatever is said of tokens stands on the device of k, and
// the host never reads it. Tokens are counted through k, of all its batch entries: total. All that is not said to have
// strides is contiguous.
struct AppendOptions {
  // Token t goes to row slots[t] % page_size of page slots[t] / page_size, or where that is negative nowhere: i32 or
  // i64 [total]. Beside nothing else that says where. Default: by sequences, as follows.
  std::optional<Tensor> slots;
  // The rows of each sequence, with its new tokens: i32 [batch]. Of n new ones token i is in row seqused_kv - n + i, so
  // that the same tensor is seqused_kv of the step's attention, where the last query stands at the last key. Must be
  // given without slots.
  std::optional<Tensor> seqused_kv;
  // New tokens of sequence b are those from cu_seqlens[b] to cu_seqlens[b + 1], as cu_seqlens_q says it of the step's
  // queries: i32 [batch + 1]; k is of batch 1, or lacks that dimension. A token of no sequence is passed over; zeros
  // may stand behind the last offset. Default: those of batch entry b of k.
  std::optional<Tensor> cu_seqlens;
  // Row r of sequence b is row r % page_size of page page_table[b][r / page_size]: i32 [batch, entries], any stride of
  // the first dimension. Default: the caches have a batch entry for each sequence, [batch, seqlen, ...].
  std::optional<Tensor> page_table;
  // In place of b in that: i32 [batch]. Then the table, or the caches, may have any number of rows, or batch entries.
  std::optional<Tensor> batch_indices_kv;
  // Rows before the first key of a sequence, which seqused_kv counts, too: i32 [batch]. They only make a difference to
  // rotary embedding. Not beside page_table.
  std::optional<Tensor> leftpad_kv;
  // Rotary embedding (Su et al. 2021, "RoFormer") of k, and of q: element pairs (x, y) of a row at position p become
  // (x cos - y sin, y cos + x sin), in f32, and are rounded once; cos = rotary_cos[p][i] and sin = rotary_sin[p][i] for
  // pair i: f16, bf16 or f32 [positions, rotary_dim / 2], the second a multiple of 8, the last dimension contiguous,
  // 16-byte aligned, strides multiples of 8. Elements from rotary_dim on stay. Both or none. Default: none.
  std::optional<Tensor> rotary_cos, rotary_sin;
  // Whether pair i is elements 2 i and 2 i + 1, as in GPT-J, and not i and i + rotary_dim / 2, as in GPT-NeoX.
  bool rotary_interleaved = false;
  // The position of each token: i32 or i64 [total]. Must be given beside slots. Default: its place in its sequence,
  // counted from the first key. Only beside rotary_cos.
  std::optional<Tensor> positions;
  // Queries of the same tokens, [batch, seqlen, num_heads_q, head_dim] or as k without the first, and where they go
  // when they are turned as keys are: the same shape; q itself, or memory apart from all else. Only beside rotary_cos.
  // Beside k_rotary: their last columns, as many as that has.
  std::optional<Tensor> q, q_out;
  // The last columns of keys, which turn in place of k, and where they go, k_rotary of attention: the shapes of k and
  // of k_cache but for the head dim, any multiple of 8, and the dtype of k, beside caches of e4m3, too. Both or none.
  // Beside them v_cache may be k_cache, which is written once, as caches of MLA are: v is k then, and v_scale k_scale.
  std::optional<Tensor> k_rotary, k_rotary_cache;
  // What elements of caches of 8 bits are multiplied by to become what was stored: f32, as k_scale and v_scale of
  // attention are, both or none. Of all heads or of each head they are read, [1] or [num_heads_kv]: rows are divided by
  // them. Of each token and head they are written, k_cache without its last dimension: of each row the largest finite
  // magnitude over 448, of e5m2 57344, at least 2^-126. Only beside caches of 8 bits. Default: 1.
  std::optional<Tensor> k_scale, v_scale;
  // The call is asynchronous on this stream.
  Stream stream = nullptr;
};

// Writes each new key and value into its row of the caches, and nothing else, in one launch.
//   k        [batch, seqlen, num_heads_kv, head_dim]     f16 or bf16; beside slots or cu_seqlens also [total, ...]
//   v        [batch, seqlen, num_heads_kv, head_dim_v]   the dtype of k
//   k_cache  [pages, page_size, num_heads_kv, head_dim]  the dtype of k, e4m3 or e5m2; without pages [batch, ...]
//   v_cache  [pages, page_size, num_heads_kv, head_dim_v]  the dtype of k_cache
// Bits are copied where nothing turns. Into e4m3 numbers are rounded to the nearest one once they are turned and
// divided, those above 448 in magnitude to 448 and NaN to NaN; that takes compute capability 8.9 or more. So they are
// into e5m2, whose largest number, here and for scales, is 57344. head_dim and head_dim_v are any multiples of 8. Views
// are as of attention: the last dimension contiguous, pointers 16-byte aligned, the other strides multiples of 8
// elements, of 8 bits 16, so heads may come before rows, and both caches may be parts of one pool. They must not
// overlap the inputs. A row outside of the caches or of the table, and one of a page that is none, is not written; a
// position outside of rotary_cos is undefined, and reads nothing else. Of two tokens that go to the same row one is
// left, or parts of both. A kernel for each dtype, pairing and dtype of rotary_cos is compiled once, or loaded from the
// cache, whatever the shapes; once that has been called, calls may be captured in a CUDA graph. Allocates nothing on
// the device. Thread-safe. Throws Error; then nothing was launched or written.
void append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const AppendOptions& opts);

// What is compiled into a kernel of append: Engine::compile_append makes it ahead of calls.
struct AppendProblem {
  DType dtype = DType::bf16;  // of k and v: f16 or bf16
  // Of caches: dtype, e4m3 or e5m2. Default: dtype.
  std::optional<DType> cache_dtype;
  // Of rotary_cos and rotary_sin: f16, bf16 or f32. Default: nothing turns.
  std::optional<DType> rotary;
  bool rotary_interleaved = false;  // only beside rotary
};

}  // namespace flashjit
