// SPDX-License-Identifier: Apache-2.0
// The masks that options ask for, each in one way.
#pragma once

#include "flashjit/attention.h"

namespace flashjit::runtime {

struct Masks {
  bool causal = false;
  Window window;  // beside a causal mask -1 on the right

  std::int64_t chunk = 0;  // 0: none
  bool prefix = false;     // in place of a causal mask

  bool has_window() const noexcept { return window.left >= 0 || window.right >= 0; }
};

// Throws Error(invalid_argument).
Masks masks_of(const AttentionOptions& opts);

// What a query sees at most of seqlen_kv keys.
std::int64_t keys_of_query(const Masks& masks, std::int64_t seqlen_kv) noexcept;
// From the first key that some of so many neighbouring queries sees to the last one, at most.
std::int64_t keys_of_queries(const Masks& masks, std::int64_t queries, std::int64_t seqlen_kv) noexcept;

}  // namespace flashjit::runtime
