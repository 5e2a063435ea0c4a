// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/masks.h"

#include <algorithm>

#include "runtime/support/reject.h"

namespace flashjit {
namespace runtime {
namespace {

void check(const char* side, std::int64_t keys) {
  if (keys < -1) reject("window: {} must be at least 0, or -1 for all keys, was {}", side, keys);
}

}  // namespace

Masks masks_of(const AttentionOptions& opts) {
  check("left", opts.window.left);
  check("right", opts.window.right);
  if (opts.chunk < 0) reject("chunk: must be at least 1, or 0 for none, was {}", opts.chunk);
  const bool causal = opts.causal || opts.window.right == 0;
  const bool prefix = opts.prefix.has_value();
  if (prefix && opts.window.right >= 0)
    reject("window: right must be -1 with prefix, which shows keys behind the query, was {}", opts.window.right);
  return {causal && !prefix, {opts.window.left, causal ? -1 : opts.window.right}, opts.chunk, prefix};
}

std::int64_t keys_of_query(const Masks& masks, std::int64_t seqlen_kv) noexcept {
  if (masks.chunk > 0) seqlen_kv = std::min(seqlen_kv, masks.chunk);
  if (!masks.has_window()) return seqlen_kv;
  // So that no sum is larger than what it is compared with.
  std::int64_t hidden = seqlen_kv;
  for (const std::int64_t side : {masks.window.left, masks.causal ? 0 : masks.window.right, std::int64_t{1}})
    hidden -= side < 0 ? hidden : std::min(side, hidden);
  return seqlen_kv - hidden;
}

}  // namespace runtime

std::int64_t keys_of_query(const AttentionOptions& opts, std::int64_t seqlen_kv) {
  return runtime::keys_of_query(runtime::masks_of(opts), seqlen_kv);
}

}  // namespace flashjit
