// SPDX-License-Identifier: Apache-2.0
// The slot of probabilities: which of them stay once they are in their row's sum, before they meet V. Its contract:
//   static constexpr bool kIsLong;   as of a score's part: attention/score.cuh
//   explicit Part(const Arguments&)  the launch's arguments, of which a part reads the member of its own
//   float scale()                    of the output
//   uint32 flips()                   what KeptPairs are to be XORed with: all bits where they tell what goes
//   Row row(PlaceOfRow place)        what it knows of a row; place() gives its RowPlace
//   Row Row::at(int position)        of the same head
//   KeptPairs Row::kept(int first)   of a lane's columns among kKeptKeys keys from a multiple of that on; first: the
//                                    key of the first column. Keys that do not exist are asked for, too
#pragma once

#include "attention/scores.cuh"
#include "types.cuh"

constexpr int kKeptKeys = 32;

// All bits of what stays and none of what does not, once flipped, as pairs of probabilities have them: in x[t] the
// columns 8t and 8t + 1 from a lane's first one.
struct KeptPairs {
  uint32 x[kKeptKeys / 8];
};

// What scales, and what says which ones stay: the last part.
template <class... Parts>
struct Dropping;

template <>
struct Dropping<> {
  static constexpr bool kAny = false, kIsLong = false;

  struct Row {};

  template <class Arguments>
  __device__ __forceinline__ explicit Dropping(const Arguments&) {}
};

template <class Part>
struct Dropping<Part> : Part {
  static constexpr bool kAny = true;

  using Part::Part;
};

template <class Part, class Last>
struct Dropping<Part, Last> : Last {
  static constexpr bool kAny = true;

  Part part;

  template <class Arguments>
  __device__ __forceinline__ explicit Dropping(const Arguments& args) : Last(args), part(args) {}
  __device__ __forceinline__ float scale() const { return part.scale(); }
};

// How a generated ScoreMatrix becomes probabilities. All of them stay: they are in its own registers.
struct AllStay {
  template <class Scores>
  __device__ __forceinline__ void exponentiate(float scale, const float (&shift)[2], float (&sum)[2]) const {
    Scores::exponentiate(scale, shift, sum);
  }
};

// Some stay, by what the part knows of the lane's two rows, and the others are 0: they are pairs of elements, in the
// registers of P. first_key: the matrix's first column.
template <class Rows>
struct SomeStay {
  const Rows rows;
  uint32 flips;
  int first_column;

  __device__ __forceinline__ SomeStay(const Rows& rows_, uint32 flips_, int first_key, int lane)
      : rows(rows_), flips(flips_), first_column(first_key + lane % 4 * 2) {}

  template <class Scores>
  __device__ __forceinline__ void exponentiate(float scale, const float (&shift)[2], float (&sum)[2]) const {
    static_assert(Scores::kColumns % kKeptKeys == 0, "random bits are drawn for as many keys at once");
    Scores::exponentiate(
        scale, shift, sum, [&](int column) { return rows.upper.kept(first_column + column); },
        [&](int column) { return rows.lower.kept(first_column + column); }, flips);
  }
};
