// SPDX-License-Identifier: Apache-2.0
// The slot of predicates: masks that are no spans. They say of each query and key whether the one sees the other. Its
// contract:
//   explicit Part(const Arguments&)  the launch's arguments, of which a part reads the member of its own
//   Row row(PlaceOfRow place)        what it knows of a row of scores; place() gives its RowPlace
//   Row Row::at(int position)        of the same head
//   Row Row::beside(const Row&)      itself, with what a row of the same batch entry knows of keys: equal, and for the
//                                    compiler the same, so that it loads once what both ask of a key
//   bool Row::sees(Key key)          keys that do not exist are asked for, too
// Predicates may be long, and are asked for one score after the other, in a loop: what they say of a block are words of
// bits.
#pragma once

#include "attention/key.cuh"
#include "types.cuh"

// A key is seen that all of the parts show.
template <class... Parts>
struct AllSee;

template <>
struct AllSee<> {
  static constexpr bool kAny = false;

  template <class Arguments>
  __device__ __forceinline__ explicit AllSee(const Arguments&) {}

  struct Row {
    __device__ __forceinline__ Row at(int) const { return {}; }
    __device__ __forceinline__ Row beside(const Row&) const { return {}; }
    __device__ __forceinline__ bool sees(Key) const { return true; }
  };
  template <class PlaceOfRow>
  __device__ __forceinline__ Row row(PlaceOfRow) const {
    return {};
  }
};

template <class Part, class... Rest>
struct AllSee<Part, Rest...> {
  static constexpr bool kAny = true;
  using Others = AllSee<Rest...>;

  Part part;
  Others others;

  template <class Arguments>
  __device__ __forceinline__ explicit AllSee(const Arguments& args) : part(args), others(args) {}

  struct Row {
    typename Part::Row part;
    typename Others::Row others;

    __device__ __forceinline__ Row at(int position) const { return {part.at(position), others.at(position)}; }
    __device__ __forceinline__ Row beside(const Row& other) const {
      return {part.beside(other.part), others.beside(other.others)};
    }
    __device__ __forceinline__ bool sees(Key key) const { return part.sees(key) && others.sees(key); }
  };
  template <class PlaceOfRow>
  __device__ __forceinline__ Row row(PlaceOfRow place) const {
    return {part.row(place), others.row(place)};
  }
};
