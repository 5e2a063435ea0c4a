// SPDX-License-Identifier: Apache-2.0
// Rows of 16 bits made e4m3 or e5m2: turned by their positions (rotary embedding), rotated (random signs and a Hadamard
// matrix), multiplied by a reciprocal scale. A warp has 16 rows of a head in registers, as the operand of mma.sync lies
// there: lane 4 g + t has chunks t, t + 4, ... of rows g and g + 8. A product by a matrix of 1 and -1 adds up over what
// four lanes have, so that no element is shuffled; all other steps of the Hadamard matrix are sums in a lane. The next
// rows are on their way to shared memory meanwhile, where each lane finds its own.
#pragma once

#include "abi.cuh"
#include "ptx/barrier.cuh"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/special_registers.cuh"
#include "tile/octet.cuh"
#include "tile/rotary.cuh"
#include "types.cuh"

// Where scales come from: from memory, from the maxima of a launch before, or from the rows of a block, which may be
// more than the warps have at once.
enum class ScalesFrom { given, maxima, rows, many_rows };

// Stored: what rows become, E4m3Element or E5m2Element. Table: of the elements of sines and cosines.
template <class Element_, class Stored_, int kHeadDim_, bool kRotates_, Rotary kRotary_, class Table_,
          ScalesFrom kScales_>
struct QuantizeConfig {
  using Element = Element_;
  using Stored = Stored_;
  using Table = Table_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kRotates = kRotates_;
  static constexpr Rotary kRotary = kRotary_;
  static constexpr ScalesFrom kScales = kScales_;
};

struct QuantizeShared {
  float of_warps[2][kQuantizeWarps];
};

constexpr int kQuadLanes = 4;
constexpr int kRowsOfLane = 2;

// Rows [begin, end) of a head of a batch entry.
struct HeadRows {
  const QuantizeArguments& args;
  int batch, head, block;

  __device__ __forceinline__ HeadRows(const QuantizeArguments& args_, uint32 index) : args(args_) {
    const uint32 heads = static_cast<uint32>(args.num_heads), blocks = static_cast<uint32>(args.blocks_of_head);
    head = static_cast<int>(index % heads), index /= heads;
    block = static_cast<int>(index % blocks), batch = static_cast<int>(index / blocks);
  }
  __device__ __forceinline__ int begin() const { return block * args.rows_of_block; }
  __device__ __forceinline__ int end() const { return min(begin() + args.rows_of_block, args.seqlen); }
  __device__ __forceinline__ int64 in(const RowStrides& strides) const {
    return batch * strides.batch + head * strides.head;
  }
};

__device__ constexpr float inverse_root(int power_of_two) {
  return power_of_two == 1 ? 1.0f : power_of_two == 2 ? 0.70710678f : 0.5f * inverse_root(power_of_two / 4);
}

// The part of the Hadamard matrix that is the other operand: of the 16 elements that a row's four lanes give, four
// neighbours each. Element e of lane t is bits 0, 1 of its place in the row, from e, and bits 3, 4, from t.
template <class Element, int kPart>
struct QuadHadamard {
  // Of both halves of the columns.
  uint32 b[2][2];

  __device__ __forceinline__ explicit QuadHadamard(int lane) {
    const int t = lane % kQuadLanes, column = lane / kQuadLanes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int to = place(column / 2, 2 * half + column % 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) b[half][i] = sign(place(t, 2 * i), to) | sign(place(t, 2 * i + 1), to) << 16;
    }
  }

 private:
  static __device__ __forceinline__ int place(int t, int e) { return t << 2 | e; }
  static __device__ __forceinline__ uint32 one(Half) { return 0x3c00; }
  static __device__ __forceinline__ uint32 one(BFloat16) { return 0x3f80; }
  // In parts of 16 elements the upper two lanes have another part than the lower ones.
  static __device__ __forceinline__ uint32 sign(int from, int to) {
    constexpr int kBits = kPart >= 32 ? 15 : 7;
    if (((from ^ to) & ~kBits) != 0) return 0;
    return one(Element{}) | static_cast<uint32>(__popc(from & to & kBits) & 1) << 15;
  }
};

// A warp's 16 rows.
template <class Config>
class RowTile {
  using Element = typename Config::Element;
  static constexpr int kChunks = Config::kHeadDim / kChunkElements;
  static constexpr int kGroups = quantize_groups(Config::kHeadDim);  // chunks of a lane
  static constexpr int kBytes = quantize_warp_bytes(Config::kHeadDim);
  static constexpr int kPart = power_of_two_in(Config::kHeadDim, kQuantizeMaxHeadDim);
  static constexpr float kLargestFloat = 3.40282347e38f;

 public:
  // What values are to be multiplied by to be the rotated row's.
  static constexpr float kNorm = Config::kRotates ? inverse_root(kPart) : 1.0f;

  // memory: of the thread block.
  __device__ __forceinline__ RowTile(const QuantizeArguments& args_, SmemAddress memory)
      : args(args_),
        lane(ptx::tid_x() % kWarpSize),
        t(lane % kQuadLanes),
        arrived(memory + ptx::tid_x() / kWarpSize * kBytes) {}

  // Asks for the rows from this one on. Behind the last row that one is read again, and of chunks that a row lacks
  // others: either has no maximum of its own, and is not stored.
  __device__ __forceinline__ void load(const HeadRows& rows, int first) {
#pragma unroll
    for (int half = 0; half < kRowsOfLane; ++half) {
      const char* const from = row_in(rows, read_row(rows, first, half));
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        ptx::cp_async_16(place(group, half), from + chunk(group) * kChunkBytes);
    }
  }
  // Makes numbers of the rows when they are there; then the next ones may be asked for.
  __device__ __forceinline__ void finish(const HeadRows& rows, int first) {
    ptx::cp_async_wait_all();
    if constexpr (Config::kRotary == Rotary::halves) ptx::bar_warp_sync();  // a lane takes what others asked for
    if constexpr (Config::kRotary != Rotary::none) {
#pragma unroll
      for (int half = 0; half < kRowsOfLane; ++half) turn(half, rows, read_row(rows, first, half));
    }
    if constexpr (Config::kRotates) {
      rotate();
    } else {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int half = 0; half < kRowsOfLane; ++half)
          value[group][half] = Octets<Element>::of(ptx::ld_shared(place(group, half)));
    }
  }
  // The largest magnitude of what the lane has; NaN counts for none.
  __device__ __forceinline__ float largest() const {
    float found = 0.0f;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int half = 0; half < kRowsOfLane; ++half)
#pragma unroll
        for (float x : value[group][half].x) found = fmaxf(found, fabsf(x));
    return fminf(found * kNorm, kLargestFloat);
  }
  __device__ __forceinline__ void store(const HeadRows& rows, int first, float factor) const {
#pragma unroll
    for (int half = 0; half < kRowsOfLane; ++half) {
      const int row = row_of(first, half);
      if (row >= rows.end()) continue;
      char* const to = args.out + rows.in(args.out_strides) + row * args.out_strides.row;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (!has(group)) continue;
        const float(&x)[kChunkElements] = value[group][half].x;
        const auto four = [&](int i) {
          return ptx::cvt_rn_satfinite_x4(typename Config::Stored{}, x[i] * factor, x[i + 1] * factor,
                                          x[i + 2] * factor, x[i + 3] * factor);
        };
        ptx::st_global(to + chunk(group) * kChunkElements, four(0), four(4));
      }
    }
  }

 private:
  __device__ __forceinline__ int row_of(int first, int half) const { return first + lane / kQuadLanes + half * 8; }
  __device__ __forceinline__ int read_row(const HeadRows& rows, int first, int half) const {
    return min(row_of(first, half), rows.end() - 1);
  }
  __device__ __forceinline__ const char* row_in(const HeadRows& rows, int row) const {
    return args.x + rows.in(args.x_strides) + row * args.x_strides.row;
  }
  __device__ __forceinline__ bool has(int group) const {
    return kChunks % kQuadLanes == 0 || group * kQuadLanes + t < kChunks;
  }
  // Head dims are multiples of two chunks: of four the last group may lack the upper two.
  __device__ __forceinline__ int chunk(int group) const { return group * kQuadLanes + (has(group) ? t : t - 2); }

  // Where a lane's chunk arrives: what a warp reads at once follows one another.
  __device__ __forceinline__ SmemAddress place(int group, int half) const { return place_in_row(group, half, t); }
  __device__ __forceinline__ SmemAddress place_in_row(int group, int half, int of) const {
    return arrived + ((group * kRowsOfLane + half) * kWarpSize + lane - t + of) * kChunkBytes;
  }

  // Turns a row where it arrived. Neighbours that turn are in one chunk; of halves another lane may have the other one.
  __device__ __forceinline__ void turn(int half, const HeadRows& rows, int row) const {
    const int64 token = static_cast<int64>(rows.batch) * args.seqlen + row;
    const TokenNumbers& given = args.rotary.position_of_token;
    const Angles<typename Config::Table> angles(args.rotary,
                                                given.first != nullptr ? number_of_token(given, token) : row);
    ptx::Chunk turned[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) turned[group] = turned_chunk(group, half, angles);
    if constexpr (Config::kRotary == Rotary::halves) ptx::bar_warp_sync();  // nobody reads them any more
#pragma unroll
    for (int group = 0; group < kGroups; ++group) ptx::st_shared(place(group, half), turned[group]);
  }
  __device__ __forceinline__ ptx::Chunk turned_chunk(int group, int half,
                                                     const Angles<typename Config::Table>& angles) const {
    const ptx::Chunk pairs = ptx::ld_shared(place(group, half));
    const int own = chunk(group);
    if (own >= 2 * args.turned) return pairs;
    Octet x = Octets<Element>::of(pairs);
    if constexpr (Config::kRotary == Rotary::halves) {
      const bool is_second = own >= args.turned;
      const int other = is_second ? own - args.turned : own + args.turned, angle = min(own, other);
      const SmemAddress from = place_in_row(other / kQuadLanes, half, other % kQuadLanes);
      turn_half(x, Octets<Element>::of(ptx::ld_shared(from)), angles.cosine(angle), angles.sine(angle), is_second);
    } else {
      turn_neighbours(x, angles.cosine(own / 2), angles.sine(own / 2), own % 2 == 1);
    }
    return Octets<Element>::to_pairs(x);
  }

  // Signs, then bits 0, 1, 3, 4 of places in a row by a product, bit 2 in the chunk, the others between chunks.
  __device__ __forceinline__ void rotate() {
    const QuadHadamard<Element, kPart> hadamard(lane);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      rotate_quads(group, hadamard);
#pragma unroll
      for (int half = 0; half < kRowsOfLane; ++half)
#pragma unroll
        for (int i = 0; i < kChunkElements / 2; ++i)
          add_up(value[group][half].x[i], value[group][half].x[i + kChunkElements / 2]);
    }
    constexpr int kGroupsOfPart = kPart / (kQuadLanes * kChunkElements);
#pragma unroll
    for (int step = 1; step < kGroupsOfPart; step *= 2)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int i = 0; i < kRowsOfLane * kChunkElements && (group & step) == 0; ++i)
          add_up(value[group][i / kChunkElements].x[i % kChunkElements],
                 value[group + step][i / kChunkElements].x[i % kChunkElements]);
  }
  __device__ __forceinline__ void rotate_quads(int group, const QuadHadamard<Element, kPart>& hadamard) {
    const uint32 signs = args.signs[group] >> (chunk(group) % kQuadLanes * kChunkElements);
    uint32 pairs[kRowsOfLane][4];
#pragma unroll
    for (int half = 0; half < kRowsOfLane; ++half) {
      const ptx::Chunk of = ptx::ld_shared(place(group, half));
      pairs[half][0] = of.x ^ flips(signs), pairs[half][1] = of.y ^ flips(signs >> 2);
      pairs[half][2] = of.z ^ flips(signs >> 4), pairs[half][3] = of.w ^ flips(signs >> 6);
    }
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
      const uint32 a[4] = {pairs[0][2 * quad], pairs[1][2 * quad], pairs[0][2 * quad + 1], pairs[1][2 * quad + 1]};
#pragma unroll
      for (int columns = 0; columns < 2; ++columns) {
        float sums[4] = {};
        ptx::mma(Element{}, sums, a, hadamard.b[columns][0], hadamard.b[columns][1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) value[group][i / 2].x[4 * quad + 2 * columns + i % 2] = sums[i];
      }
    }
  }
  // Of a pair's signs, by two bits.
  static __device__ __forceinline__ uint32 flips(uint32 bits) { return (bits & 1) << 15 | (bits & 2) << 30; }
  static __device__ __forceinline__ void add_up(float& x, float& y) {
    const float sum = x + y;
    y = x - y, x = sum;
  }

  const QuantizeArguments& args;
  const int lane, t;
  const SmemAddress arrived;
  Octet value[kGroups][kRowsOfLane];
};

// What the kernels of a pass have in common.
template <class Config>
class QuantizeRows {
 public:
  __device__ __forceinline__ QuantizeRows(const QuantizeArguments& args_, QuantizeShared& shared_, const char* tiles_)
      : args(args_),
        shared(shared_),
        tiles(ptx::cvta_to_shared(tiles_)),
        thread(ptx::tid_x()),
        warp(thread / kWarpSize) {}

  // Writes the blocks of rows of a thread block.
  __device__ __forceinline__ void run() {
    const uint32 blocks = static_cast<uint32>(args.blocks);
    if constexpr (Config::kScales == ScalesFrom::many_rows) {
#pragma unroll 1
      for (uint32 block = ptx::ctaid_x(); block < blocks; block += ptx::nctaid_x())
        write_twice_read(HeadRows(args, block));
    } else {
      each_tile(
          ptx::ctaid_x(), blocks, ptx::nctaid_x(), [&](uint32 block) { return HeadRows(args, block); },
          [&](const HeadRows& rows) { return scale_before(rows); },
          [&](const RowTile<Config>& tile, const HeadRows& rows, int first, float before) {
            const float scale =
                Config::kScales != ScalesFrom::rows ? before : scale_by(block_largest(tile.largest()), rows, true);
            tile.store(rows, first, factor_of(scale));
          });
    }
  }
  // Finds the largest magnitude of a share of what has a scale.
  __device__ __forceinline__ void find_largest() {
    const uint32 shares = static_cast<uint32>(args.shares), heads = static_cast<uint32>(args.num_heads);
    const uint32 owner = ptx::ctaid_x() / shares;
    float largest = 0.0f;
    each_tile(
        ptx::ctaid_x() % shares, static_cast<uint32>(args.blocks_of_a_scale), shares,
        [&](uint32 block) {
          const uint32 in_batch = owner / heads * static_cast<uint32>(args.blocks_of_head) + block;
          return HeadRows(args, args.is_of_head != 0 ? in_batch * heads + owner % heads : block);
        },
        [](const HeadRows&) { return 0.0f; },
        [&](const RowTile<Config>& tile, const HeadRows&, int, float) { largest = fmaxf(largest, tile.largest()); });
    largest = block_largest(largest);
    if (thread == 0) ptx::st_global(args.maxima + ptx::ctaid_x(), largest);
  }

 private:
  static constexpr float kSmallestScale = 1.17549435e-38f;  // a normal number, so that its reciprocal is finite

  // Uses a warp's tiles of one block after the other, and what is known of it before its rows are there. The next one
  // is on its way meanwhile.
  template <class RowsOf, class Know, class Use>
  __device__ __forceinline__ void each_tile(uint32 block, uint32 end, uint32 step, RowsOf rows_of, Know know,
                                            Use use) const {
    RowTile<Config> tile(args, tiles);
    int row = warp * kQuantizeTileRows;  // in the block
    const auto load = [&] {
      const HeadRows rows = rows_of(block);
      tile.load(rows, rows.begin() + row);
    };
    load();
#pragma unroll 1
    while (block < end) {
      const HeadRows rows = rows_of(block);
      const int first = rows.begin() + row;
      const float known = know(rows);
      tile.finish(rows, first);
      row += args.warps * kQuantizeTileRows;
      if (row >= args.rows_of_block) row = warp * kQuantizeTileRows, block += step;
      if (block < end) load();
      use(tile, rows, first, known);
    }
  }
  // Reads a block twice, for its scale and to write it.
  __device__ __forceinline__ void write_twice_read(const HeadRows& rows) {
    RowTile<Config> tile(args, tiles);
    const auto each = [&](const auto& use) {
#pragma unroll 1
      for (int row = rows.begin() + warp * kQuantizeTileRows; row < rows.end(); row += args.warps * kQuantizeTileRows) {
        tile.load(rows, row);
        tile.finish(rows, row);
        use(row);
      }
    };
    float largest = 0.0f;
    each([&](int) { largest = fmaxf(largest, tile.largest()); });
    const float factor = factor_of(scale_by(block_largest(largest), rows, true));
    each([&](int row) { tile.store(rows, row, factor); });
  }

  // Of all threads, for all. Two rounds may overlap, so neighbouring ones have places of their own.
  __device__ __forceinline__ float block_largest(float largest) {
    float(&of_warps)[kQuantizeWarps] = shared.of_warps[round];
    round ^= 1;
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
      largest = fmaxf(largest, ptx::shfl_xor(largest, distance));
    if (thread % kWarpSize == 0) of_warps[warp] = largest;
    ptx::bar_sync();
    for (int i = 0; i < args.warps; ++i) largest = fmaxf(largest, of_warps[i]);
    return largest;
  }
  static __device__ __forceinline__ float factor_of(float scale) {
    return RowTile<Config>::kNorm * __fdiv_rn(1.0f, scale);
  }
  __device__ __forceinline__ char* place_of_scale(const HeadRows& rows) const {
    return args.scale + rows.in(args.scale_strides) + rows.block * args.scale_strides.row;
  }
  // The scale of what has this largest magnitude; of the thread blocks that find the same one writes it.
  __device__ __forceinline__ float scale_by(float largest, const HeadRows& rows, bool writes) const {
    const float scale = largest == 0.0f ? 1.0f : fmaxf(__fdiv_rn(largest, Config::Stored::kLargest), kSmallestScale);
    if (thread == 0 && writes) ptx::st_global(place_of_scale(rows), scale);
    return scale;
  }
  // Without the rows: that was given, or that maxima tell; 0 where only the rows do.
  __device__ __forceinline__ float scale_before(const HeadRows& rows) {
    if constexpr (Config::kScales == ScalesFrom::given) return ptx::ld_global_float(place_of_scale(rows));
    if constexpr (Config::kScales == ScalesFrom::rows) return 0.0f;
    const int owner = args.is_of_head != 0 ? rows.batch * args.num_heads + rows.head : 0;
    if (owner != owner_of_scale) {
      const bool is_first = rows.block == 0 && (args.is_of_head != 0 || ptx::ctaid_x() == 0);
      scale_of_owner = scale_by(block_largest(largest_before(owner)), rows, is_first), owner_of_scale = owner;
    }
    return scale_of_owner;
  }
  // A thread's part of the maxima of all shares.
  __device__ __forceinline__ float largest_before(int owner) const {
    const float* const maxima = args.maxima + static_cast<int64>(owner) * args.shares;
    float largest = 0.0f;
    for (int i = thread; i < args.shares; i += args.warps * kWarpSize)
      largest = fmaxf(largest, ptx::ld_global_float(maxima + i));
    return largest;
  }

  const QuantizeArguments& args;
  QuantizeShared& shared;
  const SmemAddress tiles;
  const int thread, warp;
  int round = 0;
  // By maxima: what the last scale was of.
  int owner_of_scale = -1;
  float scale_of_owner = 0.0f;
};

template <class Config>
struct LargestOfShares {
  const QuantizeArguments& args;
  QuantizeShared& shared;
  const char* tiles;

  __device__ __forceinline__ void run() const { QuantizeRows<Config>(args, shared, tiles).find_largest(); }
};
