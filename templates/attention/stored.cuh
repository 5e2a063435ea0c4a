// SPDX-License-Identifier: Apache-2.0
// How keys and values are stored: in the elements that products take, or as a part in this slot says. Its contract:
//   static constexpr int kElementsOfWord   so many are in 16 bits
//   Fragments<Config, Shape>               as ElementFragments of mma/fragments.cuh
//   Scales<Config>                         what a key and its value are multiplied by, of a warp's keys in a tile
//     Scales(tiles, tile, lane)
//     find(int first_key)         those of the keys from there on; blocks of them may follow one another, downwards
//     apply_to_scores(scores)     products with these keys
//     raise(output)               before their values are added to the output
//     apply_to_values(p0, p1, n)  probabilities of a lane's columns in the n-th eight of these keys, which are in their
//                                 row's sum by now
//     look_ahead()                these keys and values have been used
//     apply_to_output(output)     once all have been
#pragma once

#include "types.cuh"

template <class Config, class Shape>
struct ElementFragments;

// At most one part, and one that says more of its scales.
template <class... Parts>
struct StoredAs;

template <>
struct StoredAs<> {
  static constexpr int kElementsOfWord = 1;

  template <class Config, class Shape>
  using Fragments = ElementFragments<Config, Shape>;

  // All are 1.
  template <class Config>
  struct Scales {
    Scales() = default;
    template <class Tiles, class Tile>
    __device__ __forceinline__ Scales(const Tiles&, const Tile&, int) {}
    __device__ __forceinline__ void find(int) const {}
    template <class Scores>
    __device__ __forceinline__ void apply_to_scores(Scores&) const {}
    template <class Output>
    __device__ __forceinline__ void raise(Output&) const {}
    __device__ __forceinline__ void apply_to_values(float&, float&, int) const {}
    __device__ __forceinline__ void look_ahead() const {}
    template <class Output>
    __device__ __forceinline__ void apply_to_output(Output&) const {}
  };
};

template <class Part>
struct StoredAs<Part> : Part {};

template <class Part, class Scaling>
struct StoredAs<Part, Scaling> : Part {
  template <class Config>
  using Scales = typename Scaling::template Scales<Config>;
};
