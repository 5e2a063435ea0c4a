// SPDX-License-Identifier: Apache-2.0
// A tensor that is added to scores, [batch, heads, seqlen_q, seqlen_kv], block by block: the four lanes that have a row
// copy what it has for a block of keys to shared memory, while the products of the block are computed.
#pragma once

#include "attention/score.cuh"
#include "function/text.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/memory.cuh"

// The tensor is the one capture of the function; its elements have 16 bits, and those of a row are neighbours. kMember:
// of the launch's arguments.
template <class Function, auto kMember>
struct FetchedBias {
  static constexpr bool kMayHide = true;  // by -infinity
  static constexpr bool kIsLong = false, kFetches = true, kIsCurved = false;
  static constexpr int kElementBytes = 2, kLanes = 4;
  using Tensor = decltype(Function::bias);

  const Tensor& bias;

  template <class Arguments>
  __device__ __forceinline__ explicit FetchedBias(const Arguments& args) : bias((args.*kMember).function.bias) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kCommon = false, kHasNear = false;

    const Tensor* bias;
    const char* source;   // the row's first element
    SmemAddress fetched;  // the lane's columns
    float taken;          // the unit of what it takes

    __device__ __forceinline__ float apply(float score, Key key) const {
      const uint32 pair = *ptx::shared_words(fetched + key.offset / 2 * 2 * kElementBytes);
      return __fmaf_rn(score, taken, Tensor::value(key.offset % 2 == 0 ? pair & 0xffff : pair >> 16));
    }

    template <int kKeys>
    __device__ __forceinline__ static void fetch(const Row& upper, const Row& lower, int first_key, int lane) {
      const Tensor& bias = *upper.bias;
      const uint32 in_row = static_cast<uint32>(lane) % kLanes;
      // To the end of the row, of the block's at most: of all keys it could be more bytes than an int holds.
      const int left = min(static_cast<int>(bias.sizes[3]) - first_key, kKeys) * kElementBytes;
      const int64 all = reinterpret_cast<int64>(bias.data) | bias.strides[0] | bias.strides[1] | bias.strides[2];
      if (all % kChunkBytes == 0) {
        if (left == kKeys * kElementBytes) {
          upper.template copy_chunks<kKeys>(first_key, in_row);
          lower.template copy_chunks<kKeys>(first_key, in_row);
        } else {
          upper.template copy_chunks_of_end<kKeys>(first_key, in_row, left);
          lower.template copy_chunks_of_end<kKeys>(first_key, in_row, left);
        }
      } else {
        upper.template copy_elements<kKeys>(first_key, in_row, max(left, 0));
        lower.template copy_elements<kKeys>(first_key, in_row, max(left, 0));
      }
    }

   private:
    // Of bytes of the row's block.
    __device__ __forceinline__ const char* from(int first_key, uint32 byte) const {
      return source + (static_cast<int64>(first_key) * kElementBytes + byte);
    }
    __device__ __forceinline__ SmemAddress to(uint32 in_row, uint32 byte) const {
      return fetched - in_row * 2 * kElementBytes + byte;
    }
    template <int kKeys>
    __device__ __forceinline__ void copy_chunks(int first_key, uint32 in_row) const {
      constexpr int kChunks = kKeys * kElementBytes / kChunkBytes;
      const char* const first = from(first_key, in_row * kChunkBytes);
      const SmemAddress slot = to(in_row, in_row * kChunkBytes);
#pragma unroll
      for (int i = 0; i < kChunks; i += kLanes)
        if (kChunks - i >= kLanes || in_row < kChunks - i)
          ptx::cp_async_16(slot + i * kChunkBytes, first + i * kChunkBytes);
    }
    template <int kKeys>
    __device__ __forceinline__ void copy_chunks_of_end(int first_key, uint32 in_row, int left) const {
#pragma unroll 1
      for (int at = in_row * kChunkBytes; at < kKeys * kElementBytes; at += kLanes * kChunkBytes)
        ptx::cp_async_16_zero_fill(to(in_row, at), from(first_key, at), min(max(left - at, 0), kChunkBytes));
    }
    template <int kKeys>
    __device__ __forceinline__ void copy_elements(int first_key, uint32 in_row, uint32 left) const {
      constexpr int kTogether = 4;  // loads in flight
#pragma unroll 1
      for (uint32 at = in_row * kElementBytes; at < kKeys * kElementBytes; at += kTogether * kLanes * kElementBytes) {
        uint32 bits[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const uint32 byte = at + i * kLanes * kElementBytes;
          bits[i] = text::load_below(left, byte, reinterpret_cast<const unsigned short*>(from(first_key, byte)));
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) ptx::st_shared_16(to(in_row, at + i * kLanes * kElementBytes), bits[i]);
      }
    }
  };
  __device__ __forceinline__ float unit(float) const { return kLog2E; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow place_of, float taken) const {
    const RowPlace place = place_of();
    // Rows that do not exist have what the last one has.
    const int query =
        min(place.position - (place.sequence.keys - place.sequence.queries), static_cast<int>(bias.sizes[2]) - 1);
    return {&bias, bias.data + place.batch * bias.strides[0] + place.head * bias.strides[1] + query * bias.strides[2],
            place.fetched, taken * kLn2};
  }
};
