// SPDX-License-Identifier: Apache-2.0
// Values that come transposed, a row for each dim: nobody has to turn them, but their keys lie in their own order, and
// lanes exchange probabilities to have them in it.
#pragma once

#include "attention/neighbours.cuh"

struct TransposedValues {
  static constexpr bool kInKeys = false, kTransposed = true;
  using Order = Neighbours;
};
