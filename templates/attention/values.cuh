// SPDX-License-Identifier: Apache-2.0
// Where values are, and how they lie there: in memory of their own with dims along their rows, or as a part in this
// slot says. Its contract:
//   static constexpr bool kInKeys       they are the first columns of the keys
//   static constexpr bool kTransposed   a row is a dim, and has the keys one after the other; then
//   Order(lane).exchange(x, y)          makes of words of probabilities of two rows those of neighbouring keys
#pragma once

// At most one part.
template <class... Parts>
struct ValuesBy;

template <>
struct ValuesBy<> {
  static constexpr bool kInKeys = false, kTransposed = false;
};

template <class Part>
struct ValuesBy<Part> : Part {};
