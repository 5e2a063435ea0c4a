// SPDX-License-Identifier: Apache-2.0
// Products of P and V are summed by the tensor core alone: faster, and with the bits that it has. docs/kernels/fp8.md
// has what that costs.
#pragma once

struct FastSums {
  static constexpr bool kApart = false;
  static constexpr bool kScaleBlocks = false;
};
