// SPDX-License-Identifier: Apache-2.0
// What is compiled into a kernel (Problem) and for which hardware (Architecture). How it is tuned: variant.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/function.h"
#include "flashjit/tensor.h"
#include "flashjit/variant.h"

namespace flashjit {

// Head dims of q and k, and of v. Those above 256 have e4m3 only with k_rotary.
inline constexpr int kLargestHeadDim = 576, kLargestHeadDimV = 512;

// Everything that changes the generated source apart from the tuning. Batch, lengths, strides, head counts and the
// scale are not here: they are launch arguments, and a new value of them never compiles anything.
struct Problem {
  DType dtype = DType::bf16;  // f16 or bf16: of the output, q, k and v, but see e4m3; sums are kept in f32
  int head_dim = 128;         // of q and k: a multiple of 8 from 8 to kLargestHeadDim
  int head_dim_v = 128;       // of v and the output: a multiple of 8 from 8 to kLargestHeadDimV
  // Features, each compiled in where it is true; where it is not it costs nothing.
  bool causal = false;   // aligned bottom-right: query i sees the keys up to i + seqlen_kv - seqlen_q
  bool window = false;   // query i sees keys around i + seqlen_kv - seqlen_q; how many is a launch argument
  bool chunk = false;    // query i sees keys of one chunk; the size of chunks is a launch argument
  bool softcap = false;  // scores are softcap * tanh(score / softcap); the cap is a launch argument
  bool alibi = false;    // scores fall with the distance of the key; the slopes are launch arguments
  bool sinks = false;    // each query head has a score that no key stands for; the scores are launch arguments
  bool prefix = false;   // query i sees keys as with causal, and a prefix; the lengths of prefixes are launch arguments
  bool block_mask = false;  // which blocks are visited is read from memory
  bool dropout = false;     // probabilities become 0 at random; how many, the seed and the offset are launch arguments
  bool ragged = false;      // sequences of different lengths; which ones, and where they lie, are launch arguments
  bool paged = false;       // keys and values of these in pages, whose size and places are launch arguments
  bool e4m3 = false;        // keys and values are of e4m3, with a scale for all keys of a head, which launches are told
  bool token_scales = false;  // with one for each key of each head; only beside e4m3
  bool e4m3_queries = false;  // q is of e4m3, too, and so are products; only beside e4m3
  bool fast_sums = false;     // products with values are summed as the tensor core does it; only beside e4m3_queries
  bool block_scales = false;  // q, k or v has scales of blocks of rows; only beside e4m3_queries, and not ragged
  bool k_rotary = false;  // the last head_dim - head_dim_v columns of keys in a tensor of dtype; of head_dim above 256
  // v is the first columns of k, in the same memory, as MLA's latent caches have it. Calls are found out to be so; of
  // head_dim above 256, and head_dim_v of whole 128s.
  bool latent = false;
  // v is given transposed, the keys of each dim one after the other, as calls are found out to be by the strides of v;
  // only beside e4m3_queries, and not ragged.
  bool values_transposed = false;
  bool out_e4m3 = false;  // the output is of e4m3, and dtype bf16; only beside e4m3_queries
  bool e5m2 = false;      // what is of e4m3 by e4m3 and e4m3_queries is of e5m2; only beside e4m3
  // Features that are functions of a tensor, by its dtype, and users' functions: what problem_of makes of options.
  // Null: none.
  const generator::FunctionText* bias = nullptr;
  const generator::FunctionText* boolean_mask = nullptr;
  const generator::FunctionText* documents = nullptr;
  const generator::FunctionText* tree = nullptr;
  const generator::FunctionText* score = nullptr;
  const generator::FunctionText* mask = nullptr;
  const generator::FunctionText* dropout_mask = nullptr;

  friend bool operator==(const Problem& a, const Problem& b) noexcept {
    return a.dtype == b.dtype && a.head_dim == b.head_dim && a.head_dim_v == b.head_dim_v && a.causal == b.causal &&
           a.window == b.window && a.chunk == b.chunk && a.softcap == b.softcap && a.alibi == b.alibi &&
           a.sinks == b.sinks && a.prefix == b.prefix && a.block_mask == b.block_mask && a.bias == b.bias &&
           a.boolean_mask == b.boolean_mask && a.documents == b.documents && a.tree == b.tree && a.score == b.score &&
           a.mask == b.mask && a.dropout == b.dropout && a.dropout_mask == b.dropout_mask && a.ragged == b.ragged &&
           a.paged == b.paged && a.e4m3 == b.e4m3 && a.token_scales == b.token_scales &&
           a.e4m3_queries == b.e4m3_queries && a.fast_sums == b.fast_sums && a.block_scales == b.block_scales &&
           a.k_rotary == b.k_rotary && a.latent == b.latent && a.values_transposed == b.values_transposed &&
           a.out_e4m3 == b.out_e4m3 && a.e5m2 == b.e5m2;
  }
};

// Of q, and of k and v.
DType q_dtype(const Problem& problem) noexcept;
DType kv_dtype(const Problem& problem) noexcept;
// "fwd-bf16-d128-causal", "fwd-f16-d192-v128-window"; functions by a digest: "fwd-bf16-d64-score.0123456789abcdef", or
// by their class: "fwd-bf16-d64-score.tensors".
std::string to_string(const Problem& problem);
// Reads that spelling and no other; one with the digest of a user's function says too little to be read. Throws
// Error(invalid_argument).
Problem parse_problem(std::string_view text);
// The problem with a function of the library in the place of each of a user: the same one for all scores that capture
// no tensor ("score.arithmetic"), for all that do ("score.tensors"), and likewise for masks; a score that says what
// ALiBi or softcap say is of the class of that option. And a ragged batch, paged or not, is of the class of one that is
// not, and e5m2 of that of e4m3. Choices by measurement are made for it, and serve all problems of the class.
Problem tuning_class(const Problem& problem);
// Throws Error(invalid_argument) which names the field.
void validate(const Problem& problem);

// The sizes of a call.
struct CallShape {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 0, seqlen_kv = 0;
  std::int64_t num_heads_q = 1, num_heads_kv = 1;

  friend bool operator==(const CallShape& a, const CallShape& b) noexcept {
    return a.batch == b.batch && a.seqlen_q == b.seqlen_q && a.seqlen_kv == b.seqlen_kv &&
           a.num_heads_q == b.num_heads_q && a.num_heads_kv == b.num_heads_kv;
  }
};

// What of a call's shape decides which variant is best: how many queries a head has, how many keys, and how much work
// there is for each SM. The boundaries are where the best variant changed in measurements on the H200 (docs/tuning.md).
// Queries of a head, but for up_to_16: these are rows, of all heads that have k and v in common and share a tile.
enum class QueryRange : std::uint8_t { up_to_16, up_to_64, up_to_128, more };
enum class KeyRange : std::uint8_t { below_1k, below_2k, below_8k, more };
// Tiles of 128 rows, of all heads and batch entries, for each SM. A row is a query of a head; heads that have k and v
// in common share a tile where that makes fewer, as in kernels of the hopper family.
enum class WorkRange : std::uint8_t { up_to_half, up_to_1, up_to_2, up_to_4, more };

struct ShapeBucket {
  QueryRange queries = QueryRange::more;
  KeyRange keys = KeyRange::more;
  WorkRange work = WorkRange::more;

  friend bool operator==(const ShapeBucket& a, const ShapeBucket& b) noexcept {
    return a.queries == b.queries && a.keys == b.keys && a.work == b.work;
  }
};
std::string to_string(const ShapeBucket& bucket);       // "q16-kv1k-w05", "q128-kv8k-w2", "qmore-kvmore-wmore"
ShapeBucket parse_shape_bucket(std::string_view text);  // reads that; throws Error(invalid_argument)
std::vector<ShapeBucket> shape_buckets();               // all 80
// Any sizes of 0 and more, however large, num_heads_kv and sm_count at least 1.
ShapeBucket shape_bucket(const CallShape& shape, int sm_count) noexcept;

// An exact compilation target and what a kernel may use there (CUDA C++ Programming Guide, "Compute Capabilities").
struct Architecture {
  const char* name;    // "sm_90a": what NVRTC is given
  int major, minor;    // compute capability of the devices that run it
  int smem_per_block;  // bytes a thread block may have with opt-in
  int smem_per_sm;     // bytes of one SM, of which every resident block takes 1 KiB more than it asked for
};
// sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_103a, sm_120a, sm_121a.
const std::vector<Architecture>& architectures();
// By name. Throws Error(invalid_argument) which lists the known ones.
const Architecture& find_architecture(std::string_view name);

}  // namespace flashjit
