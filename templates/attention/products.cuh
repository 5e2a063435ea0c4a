// SPDX-License-Identifier: Apache-2.0
// What products are of: the elements of q, k, v and P. Its contract:
//   static constexpr int kElementsOfWord     so many are in 16 bits
//   static constexpr bool kTransposesValues  products of P take V with keys along its rows, and not dims
//   static constexpr bool kSumsApart         products of P with a block of values are added to the output by FADD: the
//                                            tensor core's own sums have too few bits
//   Probabilities<kRescale, kColumns>        what these may be: attention/softmax.cuh; columns of a block that a lane
//                                            has
//   Fragments<Config, Shape>                 as ElementFragments of mma/fragments.cuh
//   Scales<Config>                           what products and the output are multiplied by, of a tile
//     static constexpr bool kAny
//     Scales(args, heads, tile)              the launch's arguments, and how heads share the tile
//     float of_products, of_values           the former with the launch's scale_log2 in it, the latter with the factor
//                                            of the output: attention/written.cuh
//     Where kScalesBlocks, of blocks of kRowsOfScale rows, too:
//     static float of_query(args, heads, tile, row)   a row of the tile's sequence
//     static float of_key(args, tile, key), of_value(args, tile, key)
//   static constexpr bool kScalesBlocks      products have scales of their queries' and keys' blocks, and sums with a
//                                            block of values that of these
#pragma once

#include "abi.cuh"
#include "attention/softmax.cuh"
#include "types.cuh"

template <class Config, class Shape>
struct ElementFragments;

// At most one part, and one that says more of its sums.
template <class... Parts>
struct ProductsOf;

// 16-bit elements.
template <>
struct ProductsOf<> {
  static constexpr int kElementsOfWord = 1;
  static constexpr bool kTransposesValues = false, kSumsApart = false, kScalesBlocks = false;

  template <Rescale, int>
  using Probabilities = WideProbabilities;

  template <class Config, class Shape>
  using Fragments = ElementFragments<Config, Shape>;

  template <class Config>
  struct Scales {
    static constexpr bool kAny = false;

    template <class Heads, class Tile>
    __device__ __forceinline__ Scales(const typename Config::Arguments&, const Heads&, const Tile&) {}
  };
};

template <class Part>
struct ProductsOf<Part> : Part {
  static constexpr bool kSumsApart = true, kScalesBlocks = false;
};

template <class Part, class Sums>
struct ProductsOf<Part, Sums> : Part {
  static constexpr bool kSumsApart = Sums::kApart, kScalesBlocks = Sums::kScaleBlocks;
};
