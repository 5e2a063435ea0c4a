// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values have scales of blocks of rows. Products become scores by those of their two blocks, and sums
// of values stand apart, so that those of a block meet its scale where they are added to the output.
#pragma once

struct BlockScales {
  static constexpr bool kApart = true;
  static constexpr bool kScaleBlocks = true;
};
