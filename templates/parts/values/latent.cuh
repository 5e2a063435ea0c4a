// SPDX-License-Identifier: Apache-2.0
// Values that are the first columns of the keys, as in the latent caches of MLA (DeepSeek-V2, 2024, section 2.1): who
// has loaded keys has them.
#pragma once

struct LatentValues {
  static constexpr bool kInKeys = true, kTransposed = false;
};
