// SPDX-License-Identifier: Apache-2.0
// Dropout (Srivastava et al. 2014) of probabilities, by random bits of a key and a query alone: 16 bits for each, of a
// block of Philox for the eight columns that a lane has of 32 keys. include/flashjit/dropout.h says it exactly.
#pragma once

#include "abi.cuh"
#include "attention/philox.cuh"
#include "attention/probability.cuh"
#include "attention/row_place.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

struct Dropout {
  static constexpr bool kIsLong = false;

  const DropoutArguments& dropout;

  template <class Arguments>
  __device__ __forceinline__ explicit Dropout(const Arguments& args) : dropout(args.dropout) {}

  __device__ __forceinline__ float scale() const { return dropout.scale; }
  __device__ __forceinline__ uint32 flips() const { return dropout.kept_below; }

  struct Row {
    const DropoutArguments* dropout;
    int from_position;  // what is added to a position for a query
    uint32 row_of_heads, offset;
    PhiloxSeries bits;

    __device__ __forceinline__ Row at(int position) const {
      const uint32 query = position + from_position;
      return {dropout, from_position, row_of_heads, offset,
              PhiloxSeries::of({{query, 0, row_of_heads, offset}}, bits.key)};
    }
    __device__ __forceinline__ KeptPairs kept(int first) const {
      const PhiloxBlock drawn = bits.block(first);
      KeptPairs kept;
#pragma unroll
      for (int t = 0; t < kKeptKeys / 8; ++t) kept.x[t] = ptx::set_ge_f16x2(drawn.x[t], dropout->threshold);
      return kept;
    }
  };

  template <class PlaceOfRow>
  __device__ __forceinline__ Row row(PlaceOfRow place_of_row) const {
    const RowPlace place = place_of_row();
    const bool on_device = dropout.state != nullptr;
    const uint64 seed = on_device ? dropout.state[0] : dropout.seed;
    const uint64 offset = on_device ? dropout.state[1] : dropout.offset;
    const int from_position = place.sequence.queries - place.sequence.keys;
    const uint32 row_of_heads = place.batch * dropout.num_heads_q + place.head;
    const PhiloxKey key{
        {static_cast<uint32>(seed), static_cast<uint32>(seed >> 32) ^ static_cast<uint32>(offset >> 32)}};
    return Row{&dropout, from_position, row_of_heads, static_cast<uint32>(offset), {key}}.at(place.position);
  }
};
