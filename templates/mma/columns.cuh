// SPDX-License-Identifier: Apache-2.0
// Which columns of the output a lane has in its accumulators, and how it writes them: of every kTiles tiles of eight a
// run of neighbours, which begins with column first(lane) of these tiles, in chunk chunk(lane) of eight the
// of_chunk(lane)th. put(at, o, n, h): as f32, the run that begins with tile n, of half h of the lane's rows;
// put_elements() in elements, put_bytes() in those of e4m3.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

// As mma.sync has them: two of every tile.
struct ColumnsInOrder {
  static constexpr int kTiles = 1;

  __device__ __forceinline__ static constexpr int chunk(int) { return 0; }
  __device__ __forceinline__ static int of_chunk(int lane) { return lane % 4 * 2; }
  __device__ __forceinline__ static int first(int lane) { return of_chunk(lane); }

  template <int kN>
  __device__ __forceinline__ static void put(SmemAddress at, const float (&o)[kN][4], int n, int h) {
    ptx::st_shared(at, o[n][2 * h], o[n][2 * h + 1]);
  }
  template <int kN>
  __device__ __forceinline__ static void put(float* at, const float (&o)[kN][4], int n, int h) {
    ptx::st_global(at, o[n][2 * h], o[n][2 * h + 1]);
  }
  template <class Element, int kN>
  __device__ __forceinline__ static void put_elements(SmemAddress at, const float (&o)[kN][4], int n, int h) {
    ptx::st_shared(at, ptx::cvt_rn_x2(Element{}, o[n][2 * h], o[n][2 * h + 1]));
  }
  template <int kN>
  __device__ __forceinline__ static void put_bytes(SmemAddress at, const float (&o)[kN][4], int n, int h) {
    ptx::st_shared_16(at, ptx::cvt_rn_satfinite_e4m3x2(o[n][2 * h], o[n][2 * h + 1]));
  }
};

// Of sixteen columns a tile has the even ones, and the next the odd ones: as an ldmatrix that transposes brings values
// of 8 bits.
struct ColumnsByParity {
  static constexpr int kTiles = 2;

  __device__ __forceinline__ static int chunk(int lane) { return lane % 4 / 2; }
  __device__ __forceinline__ static int of_chunk(int lane) { return lane % 2 * 4; }
  __device__ __forceinline__ static int first(int lane) { return lane % 4 * 4; }

  template <int kN>
  __device__ __forceinline__ static void put(SmemAddress at, const float (&o)[kN][4], int n, int h) {
    ptx::st_shared(at, run(o, n, h));
  }
  template <int kN>
  __device__ __forceinline__ static void put(float* at, const float (&o)[kN][4], int n, int h) {
    ptx::st_global(at, run(o, n, h));
  }
  template <class Element, int kN>
  __device__ __forceinline__ static void put_elements(SmemAddress at, const float (&o)[kN][4], int n, int h) {
    ptx::st_shared(at, ptx::cvt_rn_x2(Element{}, o[n][2 * h], o[n + 1][2 * h]),
                   ptx::cvt_rn_x2(Element{}, o[n][2 * h + 1], o[n + 1][2 * h + 1]));
  }
  template <int kN>
  __device__ __forceinline__ static void put_bytes(SmemAddress at, const float (&o)[kN][4], int n, int h) {
    ptx::st_shared(at, ptx::cvt_rn_satfinite_x4(E4m3Element{}, o[n][2 * h], o[n + 1][2 * h], o[n][2 * h + 1],
                                                o[n + 1][2 * h + 1]));
  }

 private:
  template <int kN>
  __device__ __forceinline__ static ptx::Chunk run(const float (&o)[kN][4], int n, int h) {
    return {__float_as_uint(o[n][2 * h]), __float_as_uint(o[n + 1][2 * h]), __float_as_uint(o[n][2 * h + 1]),
            __float_as_uint(o[n + 1][2 * h + 1])};
  }
};
