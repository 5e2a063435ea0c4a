// SPDX-License-Identifier: Apache-2.0
// Attention in one call, on the default engine.
#pragma once

#include <cstdint>
#include <optional>

#include "flashjit/dropout.h"
#include "flashjit/function.h"
#include "flashjit/problem.h"
#include "flashjit/tensor.h"

namespace flashjit {

// A sliding window: query i sees at most `left` keys before key i + seqlen_kv - seqlen_q, that key itself, and at most
// `right` keys after it. -1: all there are on that side.
struct Window {
  std::int64_t left = -1, right = -1;

  friend bool operator==(const Window& a, const Window& b) noexcept { return a.left == b.left && a.right == b.right; }
};

// How products of probabilities and values of e4m3 are summed. The tensor core's own sums have fewer bits than f32, so
// that those over many keys whose values have a mean lose some of it: docs/kernels/fp8.md.
enum class Accumulate {
  exact,  // in f32, a block of keys at a time; probabilities have been rounded to e4m3 by then
  fast,   // by the tensor core alone
};

class BatchPlan;  // flashjit/batch_plan.h

struct AttentionOptions {
  // Query i sees the keys up to i + seqlen_kv - seqlen_q: the mask is aligned bottom-right, as in FlashAttention 2.1+.
  bool causal = false;
  // Aligned as causal is; beside it, nothing on the right. The sizes are launch arguments: windows of one shape bucket
  // share a kernel, and after Engine::prepare none compiles anything. Keys outside of the window are not read, but for
  // those that share a block of keys with one inside. Default: no window.
  Window window;
  // Chunked attention: keys are cut into chunks of so many, of which query i sees the one that key i + seqlen_kv -
  // seqlen_q is in, or would be. Beside a causal mask and a window it sees what all of them show. Sizes and blocks as
  // of a window. Default: 0, no chunks.
  std::int64_t chunk = 0;
  // Factor on q k^T before the softmax; finite. Default: 1 / sqrt(head_dim).
  std::optional<float> softmax_scale;
  // Scores become softcap * tanh(score / softcap), by an instruction that is exact to 2^-11 of the cap. From 1e-6 to
  // 1e6; a new value compiles nothing. Default: 0, as they are.
  float softcap = 0;
  // ALiBi: the score of query i and key j loses slope * |i + seqlen_kv - seqlen_q - j|, after the cap. One slope for
  // each query head: f32 [num_heads_q], or [batch, num_heads_q]; the last dimension contiguous, on the device of q. Of
  // any sign, and of magnitude 64 at most: beside steeper ones scores lose digits. The magnitude of softmax_scale must
  // be at least 2^-64 then. Default: none.
  std::optional<Tensor> alibi_slopes;
  // Attention sinks: each row's softmax has one more score, that of its query head, which stands for no key and adds no
  // value; cap and slopes do not change it. Below 2e38 in magnitude, or -infinity for none; shapes as of alibi_slopes.
  // A row that sees no key gives 0, and the sink as its LSE. Default: none.
  std::optional<Tensor> sinks;
  // Added to each score, after cap and slopes: f16, bf16 or f32 [batch, num_heads_q, seqlen_q, seqlen_kv], any of the
  // first three may be 1 for all; the last dimension contiguous, on the device of q. -infinity hides the key. Default:
  // none.
  std::optional<Tensor> bias;
  // Where it is false the query does not see the key: boolean, shapes as of bias. Default: none.
  std::optional<Tensor> boolean_mask;
  // Packed sequences: a query sees the keys of its own document. The document of each key, by any numbers: i32
  // [batch, seqlen_kv], batch may be 1 for all; that of query i is that of key i + seqlen_kv - seqlen_q, and a query
  // that has none there sees no key. The last dimension contiguous. Default: none.
  std::optional<Tensor> documents;
  // Prefix-LM: a query sees all keys up to its own, as with a causal mask, and the first prefix[b] keys of its batch
  // entry: i32 [batch], contiguous. With or without causal. Default: none.
  std::optional<Tensor> prefix;
  // Trees of tokens, as speculative decoding drafts them: the last seqlen_q keys are the queries' own, query i sees
  // those of them whose bit is set, and all keys before them. Key seqlen_kv - seqlen_q + j has bit j % 64 of word j /
  // 64: i64 [batch, seqlen_q, words], batch may be 1 for all, words at least seqlen_q / 64; the last dimension
  // contiguous. seqlen_q must be at most seqlen_kv. Default: none.
  std::optional<Tensor> tree;
  // Functions of the caller's, see function.h: what becomes of a score after cap and slopes, and which keys a query
  // sees of those that the masks above show. Default: none.
  std::optional<Score> score;
  std::optional<Mask> mask;
  // What they call the first query and the first key of each sequence, so that who has a part of a sequence can give
  // the positions in the whole of it: i32 [batch], contiguous, on the device of q. Only beside one of them. Default: 0.
  std::optional<Tensor> query_offsets, key_offsets;
  // What of the keys boolean_mask, documents, tree and mask leave, as Engine::block_mask has made it of the same
  // options and lengths: blocks of keys that no query of a tile sees are passed over then, and those that all see need
  // no mask. Without it the same but for rounding, at the cost of all blocks. Default: none.
  std::optional<Tensor> block_mask;
  // What probabilities become 0 at random, see dropout.h. A new probability above 0, seed or offset compiles nothing.
  // Default: none.
  Dropout dropout;
  // Seed and offset, in place of those of dropout: i64 [2], contiguous, on the device of q, so that a captured graph
  // can have others each time it runs. Default: none.
  std::optional<Tensor> dropout_state;
  // In place of the random choice: where it is false the probability becomes 0; the output is still divided by 1 -
  // dropout.probability, exactly. Boolean, shapes as of bias. Not beside dropout_state. Default: none.
  std::optional<Tensor> dropout_mask;
  // Ragged batches: sequences of different lengths, which stand in device memory and which the host never reads. Packed
  // sequences follow one another: query sequence b has the rows from cu_seqlens_q[b] to cu_seqlens_q[b + 1] of q and of
  // the output, i32 [batch + 1], and q, the output and lse are of batch 1, or lack that dimension: [total, num_heads,
  // head_dim], lse [num_heads, total]. Likewise k and v by cu_seqlens_kv. Without offsets each sequence has a batch
  // entry of its own. Of these rows the first seqused_q[b] and seqused_kv[b] count, i32 [batch], and of those of k and
  // v not the first leftpad_kv[b], so that seqused_kv[b] - leftpad_kv[b] keys are left. Without cu_seqlens_kv the keys
  // of sequence b may be in batch entry batch_indices_kv[b]. All contiguous, on the device of q; lengths may be 0 on
  // either side. Masks, positions and what is said of seqlen_q and seqlen_kv hold for each sequence by itself, batch
  // entries are sequences, and tensors of queries and keys have the longest lengths. Rows that belong to no sequence
  // are neither read nor written. Where an offset is smaller than the one before it the sequence has no rows, so
  // zeros behind the last sequence are none; of rows that two sequences share nothing is promised. Nothing outside of
  // the tensors is touched, wherever lengths and indices point: they are cut to what there is. Work is ordered by a
  // kernel in front of the call's, the longest sequences first, in memory that the engine keeps for the stream. Not
  // beside block_mask, nor batch_indices_kv beside cu_seqlens_kv. Default: none.
  std::optional<Tensor> cu_seqlens_q, cu_seqlens_kv;
  std::optional<Tensor> seqused_q, seqused_kv;
  std::optional<Tensor> leftpad_kv;
  std::optional<Tensor> batch_indices_kv;
  // A ragged batch whose keys and values stand in pages, i32 [batch, entries], the last dimension contiguous, on the
  // device of q: k and v are [pages, page_size, num_heads_kv, head_dim] with any strides, and key j of sequence b is
  // row j % page_size of page page_table[b][j / page_size], so that a sequence may have entries * page_size keys, of
  // which seqused_kv[b] count. With batch_indices_kv it is row batch_indices_kv[b] of the table. Pages may be shared.
  // Neither rows behind a sequence's keys nor entries and pages that these do not need are used, whatever stands there.
  // A page number outside of the pages is undefined: it reads another page, and no other memory. Any page_size; kernels
  // of the hopper family want a multiple of 8. Not beside cu_seqlens_kv and leftpad_kv. Default: none.
  std::optional<Tensor> page_table;
  // What k and v of e4m3 are multiplied by to become what was stored: f32, one number for all, [1], for each head,
  // [num_heads_kv], or for each token and head, which is the shape of k without its last dimension: [batch, seqlen_kv,
  // num_heads_kv], [total, num_heads_kv] beside cu_seqlens_kv, or [pages, page_size, num_heads_kv]. Any strides, on the
  // device of q. Both or none, and both for each token or neither. Scales of rows that belong to no sequence are not
  // read; others must be finite. Only beside k and v of e4m3; beside q of e4m3, too, they are as q_scale says. Default:
  // 1.
  std::optional<Tensor> k_scale, v_scale;
  // Keys in two tensors, as caches of multi-head latent attention (MLA) are when it decodes absorbed: the last columns
  // of keys, of the dtype of q, and without scales whatever k is of: [batch, seqlen_kv, num_heads_kv, rotary_dim], or
  // as k else has it beside cu_seqlens_kv and page_table, with any strides that k may have. k then has the head dim of
  // v, a multiple of 16 (and may be the same memory), and q that and rotary_dim, more than 256 together. Rows behind a
  // sequence's keys are not used. k and v of e4m3 need compute capability 8.9 here. Not beside q of e4m3. Default:
  // none.
  std::optional<Tensor> k_rotary;
  // Queries of e4m3, and products with them: q, k and v are then all of e4m3, and q_scale, k_scale and v_scale are what
  // they are multiplied by to become what was stored, as quantize makes them: f32, one number for all, [1], for each
  // head, [num_heads], for each head of a sequence, [batch, num_heads], or for each block of 128 of its rows, the last
  // time fewer, [batch, num_heads, ceil(seqlen / 128)]: the latter where all sequences have one length, and then
  // products with values are summed exactly. Any strides, on the device of q. Positive normal numbers: of others
  // nothing is promised of the rows that they are for. Each may be left out, which is 1.
  std::optional<Tensor> q_scale;
  // Of such calls: how products with values are summed. fast must not be asked for in others. Default: exact.
  Accumulate accumulate = Accumulate::exact;
  // Of such calls the dtype of the output: f16, bf16 or e4m3. Default: bf16.
  std::optional<DType> out_dtype;
  // Of an output of e4m3: what it is to be multiplied by to become the result, as q_scale is of q: the result is
  // divided by it before it is rounded, and what is above 448 in magnitude then becomes that. One number for all, f32
  // [1], on the device of q, positive and normal. Default: 1.
  std::optional<Tensor> out_scale;
  // Upper bounds of these lengths: what tensors of queries and keys are checked by, and a kernel is chosen by. Beside
  // such tensors nothing is promised of queries and keys beyond them. Where a sequence has more queries than
  // max_seqlen_q, or with fixed_split_size more keys than max_seqlen_kv, its rows may be wrong. Default: 0, as many as
  // there are rows; more than these count as these.
  std::int64_t max_seqlen_q = 0, max_seqlen_kv = 0;
  // Batch-invariant: the keys of each sequence are split so many at a time from its first one on, rounded up to a
  // multiple of 64, and what comes of a row depends, bit by bit, on its query, on the keys that it sees and their
  // values, and on what else the options say of them: not on the other rows, the sequence's place in the batch, nor on
  // how many queries it has, so that a token decoded alone is what it is in a prompt. On devices of one architecture,
  // and unless some calls have tensors that TMA can describe and others none. Takes a variant of its own: one that is
  // given must have always and splitkv. Calls have memory for the partial results of all rows, head_dim_v + 2 floats
  // for each fixed_split_size keys, and of ragged batches max_seqlen_kv is a limit then. Default: 0, keys are split as
  // the GPU wants it.
  std::int64_t fixed_split_size = 0;
  // The list of tiles of such a batch, and for any call the memory for partial results where keys are split, made
  // before for many calls (Engine::plan): then the call makes no list, allocates nothing on the device, and runs the
  // plan's variant. Calls with one plan must follow one another on the device. For calls with the problem and the sizes
  // that it was made for, where keys are split also the same window and chunk, and a block mask of one head or of many
  // as there; offsets, lengths, padding and indices have no effect beyond that. Null: none.
  const BatchPlan* plan = nullptr;
  // Where to write log(sum(exp(score))) of each row, natural logarithm: f32 [batch, num_heads_q, seqlen_q], last
  // dimension contiguous. A row that sees no key gets -infinity, or its sink. Default: not written.
  std::optional<Tensor> lse;
  // The call is asynchronous on this stream.
  Stream stream = nullptr;
  // Overrides the choice of kernel. Must be legal for the problem and the device, see Engine::variants. One of the
  // hopper family needs keys, and strides above 0 and below 2^40 bytes; without a variant all tensors will do.
  std::optional<Variant> variant;
};

// The shape of a block mask, i32, for a call of this shape: [batch, num_heads_q, ceil(seqlen_q / 64), 2,
// ceil(seqlen_kv / 512)]. Where no predicate depends on the batch entry or on the head, make it for 1.
Dims block_mask_dims(const CallShape& shape);
// What is compiled for calls with these options: for Engine::prepare, compile, variants, … A window that ends at the
// query's own key is a causal mask. Throws Error(invalid_argument) for options that no call may have.
// dtype: of q; kv_dtype: of k and v, default: that of q.
Problem problem_of(DType dtype, int head_dim, int head_dim_v, const AttentionOptions& opts,
                   std::optional<DType> kv_dtype = {});
// The number of keys that a query sees at most, of seqlen_kv that there are: what a variant is chosen by in place of
// seqlen_kv. Throws Error(invalid_argument) for a window or a chunk that no call may have.
std::int64_t keys_of_query(const AttentionOptions& opts, std::int64_t seqlen_kv);

// softmax(scale * q k^T) v on the GPU that holds q, k and v.
//   q  [batch, seqlen_q,  num_heads_q,  head_dim]      f16 or bf16, or e4m3 beside k of e4m3
//   k  [batch, seqlen_kv, num_heads_kv, head_dim]      the dtype of q, or e4m3; beside k_rotary head_dim_v columns
//   v  [batch, seqlen_kv, num_heads_kv, head_dim_v]    the dtype of k
//   -> [batch, seqlen_q,  num_heads_q,  head_dim_v]    the dtype of q, of e4m3 opts.out_dtype; packed, on opts.stream
// v of e4m3 beside q of e4m3 may come transposed, where all sequences have one length: its keys contiguous, and the
// strides of its other dimensions, that of head_dim among them, multiples of 16 elements.
// head_dim and head_dim_v are multiples of 8 from 8 to kLargestHeadDim and kLargestHeadDimV, beside e4m3 without
// k_rotary to 256 (docs/kernels/large_heads.md). num_heads_kv divides num_heads_q (query head h reads key/value head
// h / (num_heads_q / num_heads_kv)). Lengths may be 0; a row that sees no key gives 0. The last
// dimension must be contiguous, pointers 16-byte aligned and the other strides multiples of 8 elements; beyond that
// strides are free, so [batch, heads, seqlen, dim] memory is passed as a view with its dimensions in the order above.
// Scores of any size are right as long as f32 holds them, scaled and unscaled. NaN or infinity in q reaches its row, in
// k the rows that see that key; a row whose scores are all -infinity is as one that sees no key. In v it also reaches
// rows shortly before those, and beside a window or chunks rows shortly after them, because the tensor cores multiply
// what masks hide by 0; so v must be finite behind the mask too, and no larger than 1e28 in magnitude, as sums in f32
// exceed the result on the way. k and v of e4m3 have strides that are multiples of 16 elements, and no
// fixed_split_size. They are for caches, see k_scale, or beside q of e4m3, see q_scale: the former are read by kernels
// of the hopper family alone, which want at least one row and strides above 0, as they do of the latter, which other
// families from compute capability 8.9 on multiply, too, of head dims that are multiples of 16 and without dropout.
// Here and in AttentionOptions e5m2 may stand in the place of e4m3, of all of q, k and v that are of 8 bits, with one
// difference: beside k_rotary it takes no compute capability.
// Memory outside of the tensors reaches nothing. The first call for a problem compiles a kernel or loads it from the
// cache; later calls only launch. Thread-safe. Throws Error; after an error nothing was launched or written and the
// CUDA context is as before.
DeviceTensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});

// The same into memory of the caller: out is [batch, seqlen_q, num_heads_q, head_dim_v] and must not overlap the
// inputs.
void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const AttentionOptions& opts = {});

}  // namespace flashjit
