// SPDX-License-Identifier: Apache-2.0
// Where values are: in memory of their own, or as a part in this slot says. Its contract:
//   static constexpr bool kInKeys   they are the first columns of the keys
#pragma once

// At most one part.
template <class... Parts>
struct ValuesBy;

template <>
struct ValuesBy<> {
  static constexpr bool kInKeys = false;
};

template <class Part>
struct ValuesBy<Part> : Part {};
