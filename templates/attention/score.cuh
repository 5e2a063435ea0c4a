// SPDX-License-Identifier: Apache-2.0
// The slot of scores: what becomes of a product q k before the softmax.
//
// Here a score is a multiple of a unit of binary logarithms: products are multiples of softmax_scale * log2(e), by
// which the softmax multiplies in its exponent anyway. A part may leave what it makes in another unit, and so spare a
// multiplication of each score. What all scores of a row in a block have in common it may leave to be added to the
// softmax's exponent, which is one addition in place of one for each score. Its contract:
//   static constexpr bool kMayHide;  it may make -infinity of a score
//   static constexpr bool kIsLong;   its rows are too much to be kept from block to block: they are found anew
//   static constexpr bool kFetches;  it fetches tiles of 16-bit elements; at most one part does
//   explicit Part(const Arguments&)  the launch's arguments, of which a part reads the member of its own
//   float unit(float taken)          the unit of what it makes, from that of what it takes
//   template <bool kDefers> Row      what it knows of a row of scores
//   Row<kDefers> row<kDefers>(PlaceOfRow place, float taken)
//                                    place() gives the row's RowPlace, and is only called by who needs it
//   Row Row::at(int position)        of the same head
//   float Row::apply(float score, Key key)
//   static constexpr bool kIsCurved; its derivative is not 1 everywhere, and it tells that in backward kernels:
//   float Row::apply_with_derivative(float& score, Key key)
//                                    by the score, both in natural logarithms; the score becomes what apply() makes of
//                                    it. Rows that do not exist give what is finite, or hidden
//   static constexpr bool Row::kCommon; float Row::common(int first)
//                                    where kDefers: what apply() leaves out of all scores of keys from first on
//   static constexpr bool Row::kHasNear; Near Row::near(float unit)
//                                    a shorter way from products near 0 to the logarithms of probabilities, where no
//                                    other part changes the scores; unit: of what apply() makes
//   float Near::nearness(float product)   negative where the product is near enough
//   float Near::log2(float product, float nearness, float shift)   of the probability; shift: the softmax's
// kDefers: no part comes after it, and no row sees a key behind its own position.
#pragma once

#include "abi.cuh"
#include "attention/key.cuh"
#include "attention/row_place.cuh"
#include "types.cuh"

// Rows of a tile that was fetched lie so that lanes of a warp read from different banks.
template <int kKeys>
constexpr int fetched_row_bytes() {
  return 2 * kKeys + kChunkBytes;
}

// The parts one after the other.
// Whether a part hides rows that do not exist, whatever was made of them before.
template <class Part>
inline constexpr bool kHidesMissingRows = false;

template <class... Parts>
struct InTurn;

template <>
struct InTurn<> {
  static constexpr bool kAny = false, kMayHide = false, kIsLong = false, kFetches = false, kIsCurved = false;
  static constexpr bool kEndsInHiding = false;
  static constexpr bool kIsCurvedBehind = false;

  template <class Arguments>
  __device__ __forceinline__ explicit InTurn(const Arguments&) {}

  template <bool kDefers>
  struct Row {
    static constexpr bool kChanges = false, kCommon = false, kHasNear = false;

    __device__ __forceinline__ Row at(int) const { return {}; }
    __device__ __forceinline__ float apply(float score, Key) const { return score; }
    template <class... Behind>
    __device__ __forceinline__ float apply_with_derivative(float&, Key, Behind&...) const {
      return 1.0f;
    }
  };
  __device__ __forceinline__ float unit(float taken) const { return taken; }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow, float) const {
    return {};
  }
};

template <class Part, class... Rest>
struct InTurn<Part, Rest...> {
  using Others = InTurn<Rest...>;
  static constexpr bool kAny = true;
  static constexpr bool kMayHide = Part::kMayHide || Others::kMayHide, kIsLong = Part::kIsLong || Others::kIsLong;
  static constexpr bool kFetches = Part::kFetches || Others::kFetches;
  static constexpr bool kIsCurved = Part::kIsCurved || Others::kIsCurved;
  // Of what straight parts add to scores the derivative is not 1, either.
  static constexpr bool kIsCurvedBehind = Part::kIsCurved ? Others::kIsCurvedBehind : Others::kIsCurved;
  static constexpr bool kEndsInHiding = Others::kAny ? Others::kEndsInHiding : kHidesMissingRows<Part>;

  Part part;
  Others others;

  template <class Arguments>
  __device__ __forceinline__ explicit InTurn(const Arguments& args) : part(args), others(args) {}

  // Of the part itself.
  template <bool kDefers>
  static constexpr bool kPartDefers = kDefers && !Others::kAny;

  template <bool kDefers>
  struct Row {
    static constexpr bool kChanges = true;
    using RowOfPart = typename Part::template Row<kPartDefers<kDefers>>;
    using RowOfOthers = typename Others::template Row<kDefers>;
    static constexpr bool kCommon = RowOfPart::kCommon || RowOfOthers::kCommon;
    static constexpr bool kHasNear = RowOfPart::kHasNear && !Others::kAny;

    RowOfPart part;
    RowOfOthers others;

    __device__ __forceinline__ Row at(int position) const { return {part.at(position), others.at(position)}; }
    __device__ __forceinline__ float apply(float score, Key key) const {
      return others.apply(part.apply(score, key), key);
    }
    // The derivative of what the score becomes, which the caller has then. behind: a float, or none, for that by what
    // straight parts add.
    template <class... Behind>
    __device__ __forceinline__ float apply_with_derivative(float& score, Key key, Behind&... behind) const {
      if constexpr (Part::kIsCurved) {
        const float derivative = part.apply_with_derivative(score, key);
        return derivative * others.apply_with_derivative(score, key, behind...);
      } else {
        score = part.apply(score, key);
        const float derivative = others.apply_with_derivative(score, key, behind...);
        ((behind = derivative), ...);
        return derivative;
      }
    }
    template <int kKeys>
    __device__ __forceinline__ static void fetch(const Row& upper, const Row& lower, int first_key, int lane) {
      if constexpr (Part::kFetches)
        RowOfPart::template fetch<kKeys>(upper.part, lower.part, first_key, lane);
      else
        RowOfOthers::template fetch<kKeys>(upper.others, lower.others, first_key, lane);
    }
    __device__ __forceinline__ auto near(float unit) const { return part.near(unit); }
    __device__ __forceinline__ float common(int first) const {
      if constexpr (RowOfPart::kCommon)
        return part.common(first);
      else
        return others.common(first);
    }
  };
  __device__ __forceinline__ float unit(float taken) const { return others.unit(part.unit(taken)); }
  template <bool kDefers, class PlaceOfRow>
  __device__ __forceinline__ Row<kDefers> row(PlaceOfRow place, float taken) const {
    return {part.template row<kPartDefers<kDefers>>(place, taken),
            others.template row<kDefers>(place, part.unit(taken))};
  }
};

// What a launch makes of its products.
template <class Config>
struct Score {
  using Parts = typename Config::ScoreParts;
  static constexpr bool kDefers = Config::Masks::kEndsAtPosition;
  static constexpr bool kMayHide = Parts::kMayHide || Config::Predicates::kAny;
  static constexpr bool kIsLong = Parts::kIsLong;
  using Row = typename Parts::template Row<kDefers>;
  const ForwardSizes& sizes;
  const Parts parts;

  __device__ __forceinline__ explicit Score(const typename Config::Arguments& args)
      : sizes(args.core.sizes), parts(args) {}

  // Of what the softmax takes.
  __device__ __forceinline__ float unit() const { return parts.unit(sizes.scale_log2); }
  template <class PlaceOfRow>
  __device__ __forceinline__ Row row(PlaceOfRow place) const {
    return parts.template row<kDefers>(place, sizes.scale_log2);
  }
};

// The same of products that are multiples of another unit.
template <class Config>
struct ScaledScore : Score<Config> {
  const float of_products;

  __device__ __forceinline__ ScaledScore(const typename Config::Arguments& args, float unit)
      : Score<Config>(args), of_products(unit) {}

  __device__ __forceinline__ float unit() const { return this->parts.unit(of_products); }
  template <class PlaceOfRow>
  __device__ __forceinline__ auto row(PlaceOfRow place) const {
    return this->parts.template row<Score<Config>::kDefers>(place, of_products);
  }
};
