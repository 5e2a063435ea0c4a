// SPDX-License-Identifier: Apache-2.0
// Keys in two tensors, as caches of MLA are: k has as many columns as v, and the rotary ones, which follow them in
// queries, stand in another one, in elements of 16 bits whatever k is of. Rows of both lie alike, in pages or not.
#pragma once

#include "abi.cuh"
#include "attention/keys.cuh"

struct RotaryKeys;

template <>
struct KeysBy<RotaryKeys> : KeysBy<> {
  static constexpr bool kRotaryApart = true;

  using KeysBy<>::KeysBy;
};

template <class Pages>
struct KeysBy<Pages, RotaryKeys> : KeysBy<Pages> {
  static constexpr bool kRotaryApart = true;

  using KeysBy<Pages>::KeysBy;
};
