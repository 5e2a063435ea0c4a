// SPDX-License-Identifier: Apache-2.0
// What kernels are launched with. The host includes this file too, in a namespace of its own (generator/arguments.h):
// it names fundamental types only, and includes nothing. A kernel's argument is the family's struct, followed by one
// for each part in use that has any.
#pragma once

// Head dims above this need a kernel of their own, whose output is in the registers of two warpgroups.
constexpr int kMostUsualHeadDim = 256;

// Byte strides of a [batch, seqlen, heads, head_dim] tensor; the last dimension is contiguous.
struct RowStrides {
  long long batch, row, head;
};

// What every kernel of attention is told of the call.
struct ForwardSizes {
  float scale_log2;     // |softmax_scale| * log2(e), never 0: see make_forward_arguments
  unsigned query_sign;  // XORed into pairs of q elements: flips their sign when the scale is negative
  int batch;
  int seqlen_q, seqlen_kv;
  int num_heads_q;
  int heads_per_group;  // query heads that share one key/value head
  int num_q_tiles;      // of one head: ceil(seqlen_q / rows of a tile)
  // longest_first: heads whose K and V fit L2 together; for gradients heads of keys, with what their queries have.
  int heads_per_section;
};

// The mma.sync family.
struct MmaArguments {
  const char* q;
  const char* k;
  const char* v;
  char* out;
  float* lse;  // null: not written
  RowStrides q_strides, k_strides, v_strides, out_strides;
  RowStrides lse_strides;  // of [batch, head, row] f32, in bytes
  ForwardSizes sizes;      // in packs of heads
  int packed_heads_log2;   // attention/packed_heads.cuh; 0 where keys are not split
};

// What TMA copies by: a CUtensorMap, which only the driver reads (CUDA driver API, "Tensor Map Object Management").
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// The Hopper family. The tensor maps see [batch, seqlen, heads, head_dim] as 4 dimensions, innermost first:
// {head_dim, heads, seqlen, batch}. Their boxes are {panel columns, heads, rows, 1}: q BLOCK_Q rows and out 16, one
// warp's, of packed_heads heads together; k and v BLOCK_KV / cluster rows of one head.
struct HopperArguments {
  TensorMap q, k, v, out;
  float* lse;  // null: not written
  RowStrides lse_strides;
  unsigned* tile_counter;  // 0 before and after every launch; null unless the scheduler is dynamic
  ForwardSizes sizes;      // in packs of heads; num_q_tiles is a multiple of the cluster's size
  int packed_heads_log2;   // attention/packed_heads.cuh
};

// --- Of parts -------------------------------------------------------------------------------------------------------

// The window of parts/mask/window.cuh.
struct WindowArguments {
  int left, right;  // keys, from 0 to kWindowReach, which stands for all
};
// Leaves room for any position and for the rows of a tile that do not exist.
constexpr int kWindowReach = (1 << 30) - 1024;

// The chunks of parts/mask/chunk.cuh.
struct ChunkArguments {
  int keys;  // of one: from 1 to kWindowReach
};

// The prefixes of parts/mask/prefix.cuh.
struct PrefixArguments {
  const int* keys;  // of [batch]
};

// The cap of parts/score/softcap.cuh.
struct SoftcapArguments {
  float cap_log2, inverse_log2;  // times log2(e), and 1 over that
};

// One number for each query head: of parts/score/alibi.cuh and parts/softmax/sinks.cuh.
struct HeadArguments {
  const char* first;       // of [batch, query head] f32, those of a batch entry without gaps
  long long batch_stride;  // in bytes; 0: all batch entries have the same
};

// Where each sequence's queries and keys begin in what users' texts know as positions: function/text.cuh.
struct OffsetArguments {
  const int* of_queries;  // of [batch]; null: 0
  const int* of_keys;     // likewise
};

// A block mask: what predicates leave of keys, for granules of queries and keys, so that tiles of any size that
// granules make up find what they need in it.
constexpr int kGranuleQueries = 64, kGranuleKeys = 16;
constexpr int kGranulesOfWord = 32;  // of keys: a bit for each
// Words of one granule of queries: first whether one of its queries sees a key, then whether all see all keys.
struct BlockMaskArguments {
  const unsigned* bits;                // of [batch, head, granule of queries, 2, words]: below 2^32 of them
  unsigned batch_stride, head_stride;  // in words; 0: one for all
  unsigned words;
};

// A tile of a ragged batch: whose it is, and where its sequence lies. kernels/batch_plan.cuh makes a list of them,
// sequence by sequence, and kernels read it by parts/sequences/ragged.cuh. The tiles of a sequence are all alike: which
// of them a place is, the scheduler says.
struct alignas(16) PlannedTile {
  int sequence;                // entry of the batch
  int first, tiles;            // of the sequence: the place of the first one in the list, and how many there are
  int heads_per_section;       // see ForwardSizes
  int queries, keys;           // of the sequence
  int first_query, first_key;  // rows of q and k where it begins
  int query_batch, key_batch;  // batch entries of q and k where it lies
  int splits;                  // that each of them has: tiles * splits of the list are the sequence's
  int first_slot;              // of its partial results; below 0: it is not split
};
// What stands before the list.
struct alignas(16) BatchPlanHead {
  unsigned tiles;        // in it
  unsigned split_tiles;  // all that are split are among the first so many
  int split_keys;        // see SplitArguments
};
struct RaggedArguments {
  const PlannedTile* tiles;  // those of the sequence with the most keys first
  const BatchPlanHead* head;
  // Rows of a batch entry of q and k. Their tensor maps begin so many rows before the tensors, and see a sequence by
  // its end: runtime/call/tensor_map.h.
  int query_rows, key_rows;
};

// Split keys: attention/splits.cuh. A partial result has a slot: of each row of its tile the output by its own sum, and
// what that is. Of a tile they follow one another in the order of splits, those of all heads and tiles of a split
// together: (split * heads + head) * tiles + index, and where batches are not ragged in place of the split
// (split * batch + entry).
struct SplitArguments {
  float* partials;          // of [slot, row, head_dim_v]; null: no tile is split
  float* weights;           // of [slot, row, 2]: the binary logarithm of the sum of exponentials, as Log2 has it
  int rows;                 // of a slot: as many as a tile has at most
  int batch;                // entries; the launch's sizes have so many for each split
  int keys;                 // of a split: a multiple of a block's
  const int* planned_keys;  // the same, where batches are ragged; null: keys
  char* out;                // where the rows of tiles that are not split go; of kernels without a tensor map for it
  RowStrides out_strides;
  int fixed;  // 1: what comes of a row is to depend on that row alone, bit by bit
  // One for the first slot of each tile: how many of its splits are written. 0 before and after every launch. Null
  // where another kernel joins them; of those that cannot do it themselves anything.
  unsigned* counters;
};

// The kernel that joins them: kernels/combine.cuh, a thread block for each row.
constexpr int kCombineThreads = 256;
struct CombineArguments {
  const float* partials;
  const float* weights_of_partials;
  char* out;
  char* lse;  // null: not written
  RowStrides out_strides, lse_strides;
  int rows;  // of a slot
  int packed_heads_log2, block_rows;
  int heads;  // packs of query heads
  int head_dim_v;
  int fixed;  // see SplitArguments
  // Where batches are not ragged:
  int batch, tiles, splits, queries;
  const PlannedTile* planned;  // null: they are not
  const BatchPlanHead* head;
};

// The pages of parts/keys/paged.cuh.
struct PagedArguments {
  const int* table;      // of [row, entry]: numbers of pages
  long long row_stride;  // in entries
  int pages;             // that there are
  int page_size;         // keys of one
  // key / page_size is key * magic >> shift, for keys below 2^31 (Granlund and Montgomery 1994, theorem 4.2).
  unsigned magic;
  int shift;
  int box_rows;  // the power of two that divides page_size
};

// What keys and values of fewer bits are multiplied by: f32 of [batch, seqlen, head] like k and v, strides in bytes,
// and 0 where one stands for all. parts/stored/e4m3.cuh
struct ScaleTensor {
  const char* first;  // null: 1
  RowStrides strides;
};
struct E4m3Arguments {
  ScaleTensor keys, values;
};
// Rows of q, k and v that have one scale, where these have scales of blocks.
constexpr int kRowsOfScale = 128;

// Likewise of queries, with their heads. parts/products/e4m3.cuh
struct E4m3QueryArguments {
  ScaleTensor queries;
};

// Of an output of e4m3. parts/written/e4m3.cuh
struct OutScaleArguments {
  const float* scale;  // what it is to be multiplied by; null: 1
};

// The last columns of keys, where they stand in a tensor of their own, of [batch, seqlen, head] like k, in elements of
// 16 bits. parts/keys/rotary.cuh
struct RotaryKeyArguments {
  const char* first;
  RowStrides strides;
};

// Where the rows of sequences lie: from offset to offset of one entry, or in an entry each.
struct SequenceRows {
  const int* offsets;  // of [batch + 1]; null: none
  const int* used;     // of [batch]: so many from there on; null: all
  const int* padding;  // of [batch]: the first so many of these, which are none of the sequence; null: none
  int rows;            // of an entry
};

// The kernel that makes that list, in one thread block.
constexpr int kBatchPlanThreads = 1024;
struct BatchPlanMaker {
  BatchPlanHead* head;
  PlannedTile* tiles;
  unsigned most_tiles;
  SequenceRows queries, keys;
  const int* key_batches;  // where a sequence's keys lie; null: in an entry each
  int batch;
  int key_batch_count;
  int block_rows;         // of a tile
  int packed_heads_log2;  // that share it
  // Of sections (runtime/call/forward_arguments.h): groups of heads that share keys and heads of one, in packs; keys,
  // tiles and heads that a section may have.
  int groups, heads_per_group;
  int section_keys, section_tiles, section_heads;
  // Of split keys. wanted_tiles: of all heads that there should be; 0: nothing is split. A split has split_keys keys,
  // or where that is 0 as many as give that many tiles, at least least_keys; all are multiples of block_keys.
  int wanted_tiles;
  int split_keys, least_keys, block_keys;
  int seen_keys;       // of a tile at most
  int extra_splits;    // of a tile whose keys begin behind the first one, because spans begin at multiples of their
                       // length
  unsigned* counters;  // see SplitArguments; null: nothing is counted
};

// The dropout of parts/probability/dropout.cuh.
struct DropoutArguments {
  const unsigned long long* state;  // seed and offset; null: those that follow
  unsigned long long seed, offset;
  unsigned threshold;   // a pair of f16: what 16 random bits, as an f16, are compared with
  unsigned kept_below;  // all bits: those at or above it are dropped; none: all others are
  float scale;          // of the output: 1 over the share that is kept
  int num_heads_q;
};

// The kernel that makes one: kernels/block_mask.cuh.
struct BlockMaskMaker {
  unsigned* bits;
  long long batch_stride, head_stride;
  int words;
  int batch, heads, seqlen_q, seqlen_kv;
};

// The kernel that applies users' functions to scores: kernels/function_scores.cuh.
struct FunctionScores {
  double* scores;  // of [query, key]
  double* slopes;  // likewise, for the kernel that makes them
  int batch, head, first_query, queries;
  int seqlen_q, seqlen_kv;
  int in_f32;  // whether texts compute in f32, as in attention, and not in f64
};

// The kernel that joins partial results: kernels/merge.cuh.
constexpr int kMergeThreads = 128;
constexpr int kMostMergeParts = 16;
struct MergePart {
  const char* out;
  const char* lse;
  RowStrides out_strides;
  RowStrides lse_strides;  // of [batch, head, row] f32, in bytes
};
struct MergeArguments {
  MergePart parts[kMostMergeParts];
  int count;  // of them
  char* out;
  char* lse;  // null: not written
  RowStrides out_strides, lse_strides;
  long long rows;  // of all heads and batch entries
  int seqlen, num_heads;
  int chunks;          // of eight elements, of a row
  int row_lanes_log2;  // lanes that have a row
};

// The kernel that adds rows up: kernels/sum.cuh.
constexpr int kSumThreads = 128;
constexpr int kMostSumParts = 16;
struct SumPart {
  const char* rows;
  RowStrides strides;
};
struct SumArguments {
  SumPart parts[kMostSumParts];
  int count;  // of them
  char* out;
  RowStrides out_strides;
  long long rows;  // of all heads and batch entries
  int seqlen, num_heads;
  int chunks;          // of eight elements, of a row
  int row_lanes_log2;  // lanes that have a row
};

// A number for each token.
struct TokenNumbers {
  const char* first;  // null: none
  int are_i64;        // and not i32
};
// What rows turn by: of [position, pairs of elements that turn].
struct RotaryTables {
  const char *cosines, *sines;
  long long cosines_stride, sines_stride;  // in bytes
  int positions;
  TokenNumbers position_of_token;  // none: the token's place in its sequence
};

// The kernel that writes new keys and values into a cache: kernels/append.cuh, some thread blocks for each new token.
constexpr int kAppendThreads = 128;
// A row for each head of a token: of k, v, the rotary columns of keys or q.
struct AppendedRows {
  const char* from;
  char* to;
  RowStrides from_strides, to_strides;  // of [batch, seqlen, ...], and of a cache [pages, page_size, ...]
  int heads;                            // 0: there is no such tensor
  int chunks;                           // of eight elements, of a row
  int turned;                           // of its first chunks every two that turn together; 0: none turns
  int to_cache;                         // and not to where they come from, in another tensor
};
constexpr int kAppendedTensors = 4;
struct AppendArguments {
  AppendedRows rows[kAppendedTensors];
  int new_rows;          // of a batch entry of k
  int blocks_of_token;   // thread blocks
  int row_lanes_log2;    // lanes that have a row
  int pages, page_size;  // page_size is at least 1, even where no page is
  TokenNumbers slots;
  // Without slots: sequences. Each null where there is none.
  const int* offsets;  // of [batch + 1]: where new tokens of a sequence begin; null: each has a batch entry
  const int* used;     // of [batch]: rows of its keys, the new ones included
  const int* padding;  // of [batch]: rows before its first key
  const int* entries;  // of [batch]: its page in a cache without a table, or its row of the table; null: its number
  int batch;
  const int* table;  // of [row, entry]: numbers of pages; null: a sequence has one page
  long long table_stride;
  int table_rows, table_entries;
  RotaryTables rotary;
};

// The same where caches are of e4m3: kernels/append_scaled.cuh.
constexpr int kAppendedCaches = 2;  // the first of the tensors; the others stay 16-bit
struct AppendedScales {
  char* first;         // f32; null: 1
  RowStrides strides;  // as of a ScaleTensor
  int are_written;     // and not read: one for each token and head
};
struct AppendScaledArguments {
  AppendArguments core;
  AppendedScales scales[kAppendedCaches];
};

// The kernels that write rows in e4m3: kernels/quantize.cuh, blocks of some rows of a head one after the other.
constexpr int kQuantizeTileRows = 16;  // of a warp
constexpr int kQuantizeWarps = 8;      // of a thread block, at most
constexpr int kQuantizeMaxHeadDim = 256;
// Chunks of a row that each of the four lanes has which share it, and the bytes that a warp's rows arrive in.
constexpr int quantize_groups(int head_dim) { return (head_dim + 31) / 32; }
constexpr int quantize_warp_bytes(int head_dim) { return kQuantizeTileRows * quantize_groups(head_dim) * 64; }
struct QuantizeArguments {
  const char* x;
  char* out;
  RowStrides x_strides, out_strides;
  int seqlen, num_heads;
  int rows_of_block;
  int blocks_of_head;  // the last one may have fewer rows
  int blocks;          // in all
  int warps;           // of a thread block
  // f32, of [batch, block, head]; with strides of 0 for what they do not depend on.
  char* scale;
  RowStrides scale_strides;
  // The largest magnitudes of shares of what has a scale, which are a thread block's each.
  float* maxima;
  int shares;                                // of what has a scale
  int blocks_of_a_scale;                     // which shares are made of; of a head, or all there are
  int is_of_head;                            // 0: one scale for all
  unsigned signs[kQuantizeMaxHeadDim / 32];  // of elements of a row, a bit each; set: -1
  RotaryTables rotary;
  int turned;  // of a row's first chunks every two that turn together
};

// --- Gradients ------------------------------------------------------------------------------------------------------

// The kernel of kernels/mma_backward.cuh, a thread block for each tile of keys.
struct BackwardArguments {
  const char *q, *k, *v, *dout;
  RowStrides q_strides, k_strides, v_strides, dout_strides;
  // What kernels/backward_rows.cuh makes, of [batch, head, query]:
  const float *lse_log2, *row_sums;
  float* dq;      // sums of [batch, head, query, head_dim], without the scale; null: not wanted
  char *dk, *dv;  // null: not wanted
  RowStrides dk_strides, dv_strides;
  // num_q_tiles: places for tiles of BLOCK_Q of a head and an entry of q; of ragged batches lengths are those of
  // entries
  ForwardSizes sizes;
  float scale;    // with its sign
  int key_tiles;  // likewise of BLOCK_KV keys, of k
  // Of deterministic sums, 0 before: of tiles of keys that were taken, and QueryTurns.
  unsigned *tickets, *turns;
};

// Those of kernels/hopper_backward.cuh and hopper_backward_wide.cuh, whose thread blocks draw jobs. Tensor maps as of
// HopperArguments: boxes have BLOCK_Q rows of q, dout and out, and BLOCK_KV of k and v.
struct HopperBackwardArguments {
  TensorMap q, k, v, dout, out;
  const char *lse, *dlse;  // f32; dlse null: 0
  RowStrides lse_strides, dlse_strides;
  // Scratch, a head's queries padded to tiles of BLOCK_Q:
  float *lse_log2, *row_sums;
  float* dq_sums;      // tiles as hopper/backward_shape.cuh has them
  unsigned* counters;  // 0 before: HopperBackwardCounters
  unsigned* turns;     // of deterministic sums, likewise: QueryTurns
  char *dq, *dk, *dv;  // null: not wanted
  RowStrides dq_strides, dk_strides, dv_strides;
  ForwardSizes sizes;  // num_q_tiles: of BLOCK_Q; heads_per_section: of keys; scale_log2 with its sign
  float scale;
};
// Of a ragged batch, behind those of all parts: its list of tiles of so many rows of queries as jobs have.
struct BackwardRowTiles {
  RaggedArguments ragged;
};
// Of queries, of a job that has rows: whole tiles, and a row for each thread at most.
constexpr int backward_job_rows(int block_q) { return 256 / block_q * block_q; }
// Those of kernels/mma_large_backward.cuh, each of which makes one gradient.
struct MmaLargeBackwardArguments {
  const char *q, *k, *v, *dout;
  RowStrides q_strides, k_strides, v_strides, dout_strides;
  const float *lse_log2, *row_sums;  // as of BackwardArguments
  char* gradient;                    // null: not wanted, but what options get by it
  RowStrides gradient_strides;
  ForwardSizes sizes;  // as of BackwardArguments; heads_per_section: of keys, of dQ of queries
  float scale;         // what the gradient is multiplied by
  int key_tiles;       // as of BackwardArguments
};
// Those of kernels/hopper_large_backward.cuh, each of which makes one gradient. Tensor maps likewise: boxes have 64
// rows, those of `added` kLargeBackwardRows.
constexpr int kLargeBackwardRows = 16;
struct HopperLargeBackwardArguments {
  TensorMap q, k, v, dout;
  TensorMap added;  // what is added up: of dout for dV, of q for dK, of k for dQ
  // What kernels/backward_rows.cuh makes, of [batch, head, query]; and rows of a head there:
  const float *lse_log2, *row_sums;
  long long rows_of_head;
  char* gradient;
  RowStrides gradient_strides;
  ForwardSizes
      sizes;    // num_q_tiles: of 64 queries; heads_per_section: of keys, of dQ of queries; scale_log2 with its sign
  float scale;  // what the gradient is multiplied by
};
struct BackwardClearArguments {
  unsigned* counters;  // to be 0
  long long count;
};

// What a kernel that goes row by row through queries or keys knows of these.
constexpr int kBackwardRowsThreads = 128;
struct BackwardRows {
  long long count;  // of all heads and batch entries, with those that pad
  int seqlen;
  int padded_seqlen;
  int num_heads;
  int lanes_log2;  // lanes that have a row
};
struct BackwardPrepareArguments {
  BackwardRows rows;
  const char *out, *dout;
  const char *lse, *dlse;  // f32; dlse null: 0
  RowStrides out_strides, dout_strides, lse_strides, dlse_strides;
  float *lse_log2, *row_sums;
  float* dq;      // to be 0; null: none
  int chunks;     // of eight elements, of a row of the output
  int dq_chunks;  // likewise of dq
};
struct BackwardFinishArguments {
  BackwardRows rows;
  const float* sums;
  char* dq;
  RowStrides dq_strides;
  int chunks;  // of eight elements, of a row
  float scale;
};

// The kernel that makes rows of a gradient 0.
struct BackwardClearRowsArguments {
  BackwardRows rows;
  char* to;
  RowStrides strides;
  int chunks;  // of eight elements, of a row
};

// What parts/score_gradient/ write to, behind the arguments of all other parts.
struct SlopeGradientArguments {
  float* sums;  // of [entry of k, query head, place of a tile of keys, warp]
};
struct BiasGradientArguments {
  float* sums;                                        // packed in the shape of the bias; 0 before
  long long batch_stride, head_stride, query_stride;  // in elements; 0: one for all
};

// The kernels of kernels/head_gradients.cuh, a thread block for each number: of [heads], or [batch, heads].
constexpr int kHeadGradientThreads = 256;
struct HeadGradientArguments {
  float* gradients;
  long long batch_stride;  // of them, in elements
  int heads;               // of queries
  int batch;               // sequences that a number is for: all, or 1
  SequenceRows rows;       // of queries, or of keys, that its terms are of
};
struct SinkGradientArguments {
  HeadGradientArguments sum;
  HeadArguments sinks;
  const float *lse_log2, *row_sums;  // as the backward kernel has them
  int padded_queries;                // of a head and an entry
  int block_q;                       // of tiles in places of their own (PlacedKeyTile); 1: rows lie as in q
};
struct SlopeGradientSumsArguments {
  HeadGradientArguments sum;
  const float* sums;               // SlopeGradientArguments
  int key_tiles, block_kv, warps;  // of it
};

// The kernel of kernels/bias_gradient.cuh.
constexpr int kBiasGradientKeys = 512;  // of a thread block
struct BiasGradientRowsArguments {
  const float* sums;  // of [batch, heads, queries, keys]
  char* gradients;
  RowStrides strides;
  int heads, queries, keys;
  int blocks_of_row;
};
