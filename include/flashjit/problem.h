// SPDX-License-Identifier: Apache-2.0
// What is compiled into a kernel (Problem), how it is tuned (Variant), and for which hardware (Architecture).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/tensor.h"

namespace flashjit {

// Everything that changes the generated source apart from the tuning. Batch, lengths, strides, head counts and the
// scale are not here: they are launch arguments, and a new value of them never compiles anything.
struct Problem {
  DType dtype = DType::bf16;  // f16 or bf16: of q, k, v and the output; sums are kept in f32
  int head_dim = 128;         // of q and k: a multiple of 8 from 8 to 256
  int head_dim_v = 128;       // of v and the output: likewise
  bool causal = false;        // aligned bottom-right: query i sees the keys up to i + seqlen_kv - seqlen_q

  friend bool operator==(const Problem& a, const Problem& b) noexcept {
    return a.dtype == b.dtype && a.head_dim == b.head_dim && a.head_dim_v == b.head_dim_v && a.causal == b.causal;
  }
};

std::string to_string(const Problem& problem);  // "fwd-bf16-d128-causal", "fwd-f16-d192-v128"
// Throws Error(invalid_argument) which names the field.
void validate(const Problem& problem);

// The length of the sequences decides which variant is best; these are the ranges that the defaults know.
enum class LengthRange : std::uint8_t {
  few_queries,  // seqlen_q <= 64: decode and short prompts
  short_kv,     // seqlen_kv < 2048
  long_kv,
};
inline constexpr LengthRange kLengthRanges[] = {LengthRange::few_queries, LengthRange::short_kv, LengthRange::long_kv};
const char* to_string(LengthRange range) noexcept;
LengthRange length_range(std::int64_t seqlen_q, std::int64_t seqlen_kv) noexcept;

// How one warp's work on a key/value block overlaps with the copies of the next ones, and with other warps.
enum class Pipeline : std::uint8_t {
  serial,   // each tile is requested when it is needed and waited for at once
  overlap,  // cp.async rings of k_stages and v_stages tiles run ahead of the arithmetic
  rotate,   // overlap, and half of the warps compute scores while the other half does softmax and P V
};
enum class SmemLayout : std::uint8_t { linear, swizzle };        // swizzle: 16-byte chunks XORed with the row
enum class QuerySource : std::uint8_t { shared, registers };     // where Q fragments live during the loop
enum class Rescale : std::uint8_t { always, rare };              // rare: only when a maximum grew by more than 2^8
enum class TileOrder : std::uint8_t { natural, longest_first };  // longest_first: heads grouped to fit L2, for causal

// The tunables of the mma.sync family (cp.async, ldmatrix, mma.sync: sm_80 and later).
// Ordered and printable. One canonical spelling serves the command, logs, the cache and records:
//   mma-q128-kv64-w4-k2-v1-c2-overlap-swizzle-x4-qsmem-rare-natural
struct Variant {
  int block_q = 64;     // query rows of a thread block: 16 or 32 for each warp
  int block_kv = 64;    // keys and values of one step: a multiple of 16
  int warps = 4;        // 4 or 8
  int k_stages = 1;     // K tiles in shared memory: 1 to 3
  int v_stages = 1;     // V tiles in shared memory: 1 to 3
  int ctas_per_sm = 1;  // thread blocks that must fit on one SM: bounds registers and shared memory
  Pipeline pipeline = Pipeline::overlap;
  SmemLayout layout = SmemLayout::swizzle;
  int ldmatrix = 4;  // 8x8 matrices that one ldmatrix of K and V brings: 2 or 4
  QuerySource query = QuerySource::shared;
  Rescale rescale = Rescale::rare;
  TileOrder order = TileOrder::natural;

  friend bool operator==(const Variant& a, const Variant& b) noexcept { return compare(a, b) == 0; }
  friend bool operator!=(const Variant& a, const Variant& b) noexcept { return compare(a, b) != 0; }
  friend bool operator<(const Variant& a, const Variant& b) noexcept { return compare(a, b) < 0; }
  static int compare(const Variant& a, const Variant& b) noexcept;  // <0, 0, >0, by the fields in order
};

std::string to_string(const Variant& variant);
// Reads the canonical spelling, or a part of it: parts that are not named keep their value in base, so "kv32-k2"
// changes two things. Also "v1" to "v5", the steps of the RTX 5090 write-up
// (gau-nernst, "Writing Speed-of-Light Flash Attention for 5090 in CUDA C++", 2025).
// Throws Error(invalid_argument) which names the part.
Variant parse_variant(std::string_view text, const Variant& base = {});

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
