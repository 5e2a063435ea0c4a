// SPDX-License-Identifier: Apache-2.0
// How a kernel is tuned: one struct for each kernel family, and Variant, which is one of them.
// Ordered and printable. Each has one canonical spelling, which serves the command, logs, the cache and records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace flashjit {

// When the output and the sums are rescaled to a new row maximum.
enum class Rescale : std::uint8_t {
  always,  // in every block: the running maximum is exact
  rare,    // only when a maximum grew by more than 2^8
  lazy,    // hopper only: behind a tile's first block no maximum is taken, unless the sum of exponentials shows that
           // one grew; then the block's scores are computed again and the maximum is taken
};
// longest_first: heads grouped so that their K and V fit L2, and in a group the tiles with the most keys first.
enum class TileOrder : std::uint8_t { natural, longest_first };

// --- mma.sync (cp.async, ldmatrix, mma.sync: sm_80 and later) --------------------------------------------------------

// How one warp's work on a key/value block overlaps with the copies of the next ones, and with other warps.
enum class Pipeline : std::uint8_t {
  serial,   // each tile is requested when it is needed and waited for at once
  overlap,  // cp.async rings of k_stages and v_stages tiles run ahead of the arithmetic
  rotate,   // overlap, and half of the warps compute scores while the other half does softmax and P V
};
enum class SmemLayout : std::uint8_t { linear, swizzle };     // swizzle: 16-byte chunks XORed with the row
enum class QuerySource : std::uint8_t { shared, registers };  // where Q fragments live during the loop

// mma-q128-kv64-w4-k2-v1-c2-overlap-swizzle-x4-qsmem-rare-natural
struct MmaVariant {
  int block_q = 64;     // query rows of a thread block: 16 or 32 for each warp; of head dims above 256 for each four
  int block_kv = 64;    // keys and values of one step: a multiple of 16; of head dims above 256: 64 or 128
  int warps = 4;        // 4 or 8
  int k_stages = 1;     // K tiles in shared memory: 1 to 3. Of head dims above 256 there are as many pieces of tiles
  int v_stages = 1;     // V tiles in shared memory: 1 to 3. as both together, of K and V in turns
  int ctas_per_sm = 1;  // thread blocks that must fit on one SM: bounds registers and shared memory
  Pipeline pipeline = Pipeline::overlap;
  SmemLayout layout = SmemLayout::swizzle;
  int ldmatrix = 4;  // 8x8 matrices that one ldmatrix of K and V brings: 2 or 4
  QuerySource query = QuerySource::shared;
  Rescale rescale = Rescale::rare;  // not lazy
  TileOrder order = TileOrder::natural;
  bool split_kv = false;  // see HopperVariant; heads of a group share tiles then, and a warp has 16 rows
};

// --- Hopper (TMA, mbarrier, wgmma, setmaxnreg, clusters: sm_90a) -----------------------------------------------------

// Inside a warpgroup: what the tensor cores do while it computes the softmax of block n.
enum class GemmSoftmax : std::uint8_t {
  serial,       // nothing: Q K(n), softmax(n), P V(n) follow each other
  two_stage,    // P V(n-1) (FlashAttention-3, algorithm 2)
  three_stage,  // P V(n-1) and Q K(n+1) (FlashAttention-3, appendix B.3)
};
// Between warpgroups: what they take turns in.
enum class PingPong : std::uint8_t {
  off,
  gemm,     // issuing their GEMMs (FlashAttention-3)
  softmax,  // the softmax (cuDNN)
};
enum class ProbabilitySource : std::uint8_t { registers, shared };  // where P V takes P from
// Where the output of a tile waits for its TMA store.
enum class OutputSlot : std::uint8_t {
  query,  // in the rows of Q, which are free only when it has left
  half,   // in a slot of its own for half of the columns, filled twice
  whole,  // in a slot of its own
};
enum class Scheduler : std::uint8_t {
  single,   // one tile for each thread block
  fixed,    // persistent: block b takes the tiles b, b + blocks, ...
  dynamic,  // persistent: the next tile is drawn from a counter
};
enum class TileBoundary : std::uint8_t {
  split,  // a tile ends before the next one begins
  fused,  // the first Q K of the next tile is issued with the last P V
};

// hopper-q128-kv128-s2-qs2-whole-2stage-ppgemm-ws-pregs-cl1-rare-dynamic-longest-fused
struct HopperVariant {
  // Query rows of a thread block: 64 for each consumer warpgroup, of which there are 1 to 4; or 16, which four warps
  // share, each with a quarter of a block's keys. Most other choices are made then, and a launch may have clusters of
  // up to eight blocks that split a tile's keys (docs/kernels/decode.md). So it is with 8 and with 4, whose products do
  // without tensor cores: only who asks for these gets them.
  int block_q = 128;
  int block_kv = 128;  // keys and values of one step: a multiple of 16 from 16 to 256
  int stages = 2;      // tiles in each of the K and the V ring: 1 to 4
  int q_stages = 1;    // query tiles in shared memory: 1, or 2 to load the next one early
  OutputSlot output = OutputSlot::query;
  GemmSoftmax overlap = GemmSoftmax::two_stage;
  PingPong ping_pong = PingPong::gemm;
  bool warp_specialized = true;  // a producer warp does the loads; otherwise a consumer thread does
  ProbabilitySource probabilities = ProbabilitySource::registers;
  int cluster = 1;  // thread blocks that share K and V by multicast: 1 or 2
  Rescale rescale = Rescale::rare;
  Scheduler scheduler = Scheduler::dynamic;
  TileOrder order = TileOrder::natural;
  TileBoundary boundary = TileBoundary::split;
  // Where a call has fewer tiles than the device computes at once, the keys of each are split. A second launch combines
  // what comes of them, or in ragged batches and with a plan, of tiles of up to 16 rows, the block that comes last.
  // Spelled only where it is true: "splitkv", and in parts of a spelling "wholekv".
  bool split_kv = false;
};

// ---------------------------------------------------------------------------------------------------------------------

// By the fields in the order of their declaration.
bool operator==(const MmaVariant& a, const MmaVariant& b) noexcept;
bool operator<(const MmaVariant& a, const MmaVariant& b) noexcept;
bool operator==(const HopperVariant& a, const HopperVariant& b) noexcept;
bool operator<(const HopperVariant& a, const HopperVariant& b) noexcept;
inline bool operator!=(const MmaVariant& a, const MmaVariant& b) noexcept { return !(a == b); }
inline bool operator!=(const HopperVariant& a, const HopperVariant& b) noexcept { return !(a == b); }

// Compares with == and <: families in this order, then their fields.
using Variant = std::variant<MmaVariant, HopperVariant>;

const char* family(const Variant& variant) noexcept;  // "mma" or "hopper"
int block_q(const Variant& variant) noexcept;
int block_kv(const Variant& variant) noexcept;

std::string to_string(const Variant& variant);
// Reads the canonical spelling, or a part of it: parts that are not named keep their value in base, so "kv32-k2"
// changes two things. A family's name in front starts from that family's plain variant unless base is of it.
// Also "v1" to "v5", the steps of the RTX 5090 write-up
// (gau-nernst, "Writing Speed-of-Light Flash Attention for 5090 in CUDA C++", 2025), which are of the mma family.
// Throws Error(invalid_argument) which names the part, or both parts when two are of one tunable: "q64-q128".
Variant parse_variant(std::string_view text, const Variant& base = {});

enum class VariantVerdict : std::uint8_t {
  kept,      // Engine::variants lists it
  pruned,    // legal, but too far from the best by the model
  replaced,  // another that differs only in how shared memory or an SM is shared out is tried in its place
  illegal,
};
const char* to_string(VariantVerdict verdict) noexcept;
// What became of one combination that the library considers for a problem (Engine::explain_variants).
template <class OfPass>
struct VariantExplanationOf {
  using Verdict = VariantVerdict;
  OfPass variant;
  Verdict verdict = Verdict::kept;
  std::string reason;               // one line for what is not kept
  int smem_bytes = 0;               // of a thread block
  int registers = 0;                // of a thread, an estimate; 0 where there is none
  double smem_bytes_per_kflop = 0;  // traffic of shared memory for 1000 operations of the products
  double attainable_rate = 0;       // the share of the tensor cores' peak that this leaves; 0 where there is no model
};
using VariantExplanation = VariantExplanationOf<Variant>;

}  // namespace flashjit
