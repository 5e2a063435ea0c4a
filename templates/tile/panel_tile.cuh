// SPDX-License-Identifier: Apache-2.0
// A tile of 16-bit elements as the copy engine lays it down and wgmma reads it: panels of up to 64 columns, each with
// its rows one after the other, and the 16-byte chunks of a row XORed with the row (PTX ISA, "Asynchronous Warpgroup
// Level Matrix Shared Memory Layout").
#pragma once

#include "types.cuh"

// Rows of 128, 64 or 32 bytes have a swizzle of their own; the columns past the head dim are zeros.
__device__ constexpr int panel_columns(int columns) { return columns > 32 ? 64 : columns > 16 ? 32 : 16; }

template <int kRows_, int kColumns_, int kPanelColumns_ = panel_columns(kColumns_)>
struct PanelTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPanelColumns = kPanelColumns_;
  static constexpr int kPanels = ceil_div(kColumns, kPanelColumns);
  static constexpr int kRowBytes = kPanelColumns * 2;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static constexpr int kChunksOfRow = kRowBytes / kChunkBytes;

  // Byte offset of a 16-byte chunk, for generic reads and writes. The swizzle is one of addresses: panels of fewer than
  // eight rows begin within it.
  static __device__ __forceinline__ uint32 offset(uint32 row, uint32 chunk) {
    const uint32 panel = chunk / kChunksOfRow;
    return panel * kPanelBytes + row * kRowBytes + swizzled(row + panel * (kRows % 8), chunk) * kChunkBytes;
  }
  // From the offset of (row, chunk) that of chunk + moved_chunks in row + moved_rows: as SharedTile::move.
  static __device__ __forceinline__ uint32 move(uint32 lane_offset, int moved_rows, int moved_chunks) {
    return (lane_offset ^ (moved_chunks % kChunksOfRow * kChunkBytes)) + moved_rows * kRowBytes +
           moved_chunks / kChunksOfRow * kPanelBytes;
  }
  // Where a chunk lies in its panel's row.
  static __device__ __forceinline__ uint32 swizzled(uint32 row, uint32 chunk) {
    return (chunk % kChunksOfRow) ^ (row / (8 / kChunksOfRow) % kChunksOfRow);
  }

  // --- Matrix descriptors (PTX ISA, "Matrix Descriptor Format"): the address and two strides in units of 16 bytes, and
  // the swizzle. Adding to one moves the address, which must be below 2^18.

  static constexpr int kUnitBits = 4;  // of 16 bytes
  static constexpr uint32 kAddressMask = 0x3ffff;
  static constexpr uint32 kEightRows = 8 * kRowBytes;
  static constexpr uint64 kSwizzleMode = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;

  static __device__ __forceinline__ uint64 descriptor(SmemAddress tile, uint32 leading_bytes) {
    return static_cast<uint64>(tile >> kUnitBits) | static_cast<uint64>(leading_bytes >> kUnitBits) << 16 |
           static_cast<uint64>(kEightRows >> kUnitBits) << 32 | kSwizzleMode << 62;
  }
  // Back to the address.
  static __device__ __forceinline__ SmemAddress address(uint64 descriptor) {
    return (static_cast<uint32>(descriptor) & kAddressMask >> kUnitBits) << kUnitBits;
  }

  // Rows are M or N and columns are K: Q and K of Q K^T, P of P V. The swizzle leaves the leading stride unused.
  static __device__ __forceinline__ uint64 k_major(SmemAddress tile) { return descriptor(tile, 0); }
  static __device__ __forceinline__ constexpr uint64 k_major_step(int k16) {
    return (16 * k16 / kPanelColumns * kPanelBytes + 16 * k16 % kPanelColumns * 2) >> kUnitBits;
  }

  // From a row so many further on: whole periods of the swizzle.
  static __device__ __forceinline__ constexpr uint64 rows(int count) { return count * kRowBytes >> kUnitBits; }

  // Rows are K and columns are N: V of P V. The leading stride leads to the next panel.
  static __device__ __forceinline__ uint64 n_major(SmemAddress tile) { return descriptor(tile, kPanelBytes); }
  static __device__ __forceinline__ constexpr uint64 n_major_step(int k16) { return 2 * k16 * kEightRows >> kUnitBits; }

  // The descriptor of a tile so many slots further on in a ring of them.
  static __device__ __forceinline__ uint64 slot(uint64 first, int stage) {
    return first + static_cast<uint64>(stage * (kBytes >> kUnitBits));
  }
};
