// SPDX-License-Identifier: Apache-2.0
// What several warps have made of the same rows, each by keys of its own, and what all of them together have (Dao et
// al. 2023, "Flash-Decoding"). It travels through shared memory, also to another block of the cluster.
#pragma once

#include "attention/softmax.cuh"
#include "attention/split_rows.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "types.cuh"

// One part: of each row the output before it is divided by the sum, in f32, and the maximum and the sum themselves.
template <int kRows_, int kColumns_>
struct PartialRows {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  // Four rows of what a warp writes at once lie in different banks. Of few rows each lane has many columns.
  static constexpr int kRowBytes = kColumns * 4 + (kRows > 8 ? 32 : 0);
  static constexpr int kStates = kRows * kRowBytes;
  static constexpr int kStateBytes = 8;
  static constexpr int kBytes = kStates + kRows * kStateBytes;
  static constexpr int kSentBytes = kColumns * 4 + kStateBytes;  // of a row

  SmemAddress place;

  __device__ __forceinline__ SmemAddress row(int row) const { return place + row * kRowBytes; }
  __device__ __forceinline__ SmemAddress state(int row) const { return place + kStates + row * kStateBytes; }

  // By a warp that has all rows. Columns: those of its output.
  template <class Columns, int kNo>
  __device__ __forceinline__ void write(const SoftmaxRows<1>& softmax, const Accumulator<1, kNo>& o, int lane) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int of_lane = 8 * h + lane / 4;
      const float total = softmax.total(0, h);
#pragma unroll
      for (int n = 0; n < kNo; n += Columns::kTiles)
        Columns::put(row(of_lane) + 32 * n + Columns::first(lane) * 4, o.x[0], n, h);
      if (lane % 4 == 0) ptx::st_shared(state(of_lane), softmax.maximum[0][h], total);
    }
  }
  // The same of an output that knows where its rows are, as FmaOutput does.
  template <class, class Output>
  __device__ __forceinline__ void write(const SoftmaxRows<1>& softmax, const Output& o, int lane) const {
    static_assert(kRows <= 8, "a lane has one row's state");
    const int of_lane = lane / 4;
    const float total = softmax.total(0, 0);
    o.write(*this);
    if (lane % 4 == 0 && of_lane < kRows) ptx::st_shared(state(of_lane), softmax.maximum[0][0], total);
  }
};

// A row of all parts, which half a warp has together: a lane has kColumnsOfLane neighbouring columns, and the same
// further on of rows that are longer.
template <class Part>
struct JoinedRow : SoftmaxRows<1> {
  static constexpr int kLanes = 16;
  static constexpr int kRowsOfWarp = kWarpSize / kLanes;
  static constexpr int kColumnsOfLane = 4;
  static constexpr int kColumnsOfPass = kColumnsOfLane * kLanes;
  static constexpr int kPasses = ceil_div(Part::kColumns, kColumnsOfPass);

  float o[kPasses][kColumnsOfLane];

  __device__ __forceinline__ explicit JoinedRow(float scale) : SoftmaxRows(scale) {}

  // As of SoftmaxRows, of the row that there is.
  __device__ __forceinline__ float total(int, int) const { return sum[0][0]; }
  // Where a pass has the lane's first column. It may lie behind the last one.
  __device__ __forceinline__ static int column(int pass, int lane) {
    return pass * kColumnsOfPass + lane % kLanes * kColumnsOfLane;
  }
  __device__ __forceinline__ static bool is_first_lane(int lane) { return lane % kLanes == 0; }

  // By a whole warp, whose halves may have different rows. Of so many parts, at most kMostParts, a power of two.
  // part_at(i): where it is.
  template <int kMostParts, class PartAt>
  __device__ __forceinline__ void join(int parts, int row, int lane, PartAt part_at) {
    static_assert(kMostParts <= kLanes, "a lane weighs one part");
    const int own = lane % kMostParts;
    float of_part = -kLargestFloat, sum_of_part = 0.0f;
    if (own < parts) ptx::ld_shared(part_at(own).state(row), of_part, sum_of_part);
    float largest = of_part;
#pragma unroll
    for (int distance = kMostParts / 2; distance > 0; distance /= 2)
      largest = fmaxf(largest, ptx::shfl_xor(largest, distance));
    maximum[0][0] = largest;
    const float factor = factor_between(of_part, largest);
    float total = sum_of_part * factor;
#pragma unroll
    for (int distance = kMostParts / 2; distance > 0; distance /= 2) total += ptx::shfl_xor(total, distance);
    sum[0][0] = total;
    add_up(parts, row, lane, factor, part_at);
  }

  // The same of all splits, in their order, divided by their sum, which this gives.
  __device__ __forceinline__ SplitSum join_splits(const SplitRow& from, int lane) {
    SplitSum sum = SplitSum::none_above(largest_weight<kLanes>(from, lane));
    clear();
#pragma unroll 1
    for (int first = 0; first < from.splits; first += kLanes) {
      const int own = first + lane % kLanes;
      const float weighed = own < from.splits ? from.share(own, sum.shift) : 0.0f;
#pragma unroll 4
      for (int split = first; split < min(first + kLanes, from.splits); ++split) {
        const float share = of_lane(split - first, lane, weighed);
        sum.total += share;
        add_split(share, from, split, lane);
      }
    }
    divide_by(sum.total);
    return sum;
  }

  // As a part in another block of the cluster, whose barrier counts the bytes.
  __device__ __forceinline__ void send(const Part& part, int row, int lane, SmemAddress barrier) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
      if (column(pass, lane) < Part::kColumns)
        ptx::st_async(part.row(row) + 4 * column(pass, lane),
                      {__float_as_uint(o[pass][0]), __float_as_uint(o[pass][1]), __float_as_uint(o[pass][2]),
                       __float_as_uint(o[pass][3])},
                      barrier);
    if (is_first_lane(lane)) ptx::st_async(part.state(row), maximum[0][0], sum[0][0], barrier);
  }

 private:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& of_pass : o)
#pragma unroll
      for (float& x : of_pass) x = 0.0f;
  }
  __device__ __forceinline__ void add(int pass, float share, const ptx::Chunk& c) {
    o[pass][0] = __fmaf_rn(share, __uint_as_float(c.x), o[pass][0]);
    o[pass][1] = __fmaf_rn(share, __uint_as_float(c.y), o[pass][1]);
    o[pass][2] = __fmaf_rn(share, __uint_as_float(c.z), o[pass][2]);
    o[pass][3] = __fmaf_rn(share, __uint_as_float(c.w), o[pass][3]);
  }

  __device__ __forceinline__ void add_split(float share, const SplitRow& from, int split, int lane) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int of_lane = min(column(pass, lane), from.columns - kColumnsOfLane);
      const ptx::Chunk c = ptx::ld_global(from.partial(split) + of_lane);
      if (share != 0.0f) add(pass, share, c);
    }
  }
  __device__ __forceinline__ void divide_by(float total) {
    const float factor = total == 0.0f ? 0.0f : __frcp_rn(total);
#pragma unroll
    for (auto& of_pass : o)
#pragma unroll
      for (float& x : of_pass) x *= factor;
  }
  // What the row's lane of that number has.
  __device__ __forceinline__ static float of_lane(int index, int lane, float value) {
    return ptx::shfl_from(lane / kLanes * kLanes + index, value);
  }

  // factor: of the part that the lane has.
  template <class PartAt>
  __device__ __forceinline__ void add_up(int parts, int row, int lane, float factor, PartAt part_at) {
    clear();
#pragma unroll 4
    for (int part = 0; part < parts; ++part) {
      const float share = of_lane(part, lane, factor);
      const SmemAddress from = part_at(part).row(row);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
        add(pass, share, ptx::ld_shared(from + 4 * min(column(pass, lane), Part::kColumns - kColumnsOfLane)));
    }
  }
};
