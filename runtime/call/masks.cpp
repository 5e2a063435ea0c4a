// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/masks.h"

#include <algorithm>
#include <initializer_list>

#include "runtime/support/reject.h"

namespace flashjit {
namespace runtime {
namespace {

void check(const char* side, std::int64_t keys) {
  if (keys < -1) reject("window: {} must be at least 0, or -1 for all keys, was {}", side, keys);
}

// The sum, but no more than a limit, which a part below 0 reaches alone. No sum on the way is larger.
std::int64_t at_most(std::int64_t limit, std::initializer_list<std::int64_t> parts) {
  std::int64_t left = limit;
  for (const std::int64_t part : parts) left -= part < 0 ? left : std::min(part, left);
  return limit - left;
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
  return keys_of_queries(masks, 1, seqlen_kv);
}

std::int64_t keys_of_queries(const Masks& masks, std::int64_t queries, std::int64_t seqlen_kv) noexcept {
  const std::int64_t left = masks.window.left, right = masks.causal ? 0 : masks.window.right;
  const std::int64_t others = queries - 1;  // behind the first one
  std::int64_t keys = at_most(seqlen_kv, {left, right, 1, others});
  if (masks.chunk == 0) return keys;
  // The first key is less than a chunk before the first query. The last is no further than the end of the last chunk.
  keys = at_most(keys, {masks.chunk - 1, right, 1, others});
  const std::int64_t chunks = others == 0 ? 1 : 2 + (others - 1) / masks.chunk;
  return chunks > keys / masks.chunk ? keys : chunks * masks.chunk;
}

}  // namespace runtime

std::int64_t keys_of_query(const AttentionOptions& opts, std::int64_t seqlen_kv) {
  return runtime::keys_of_query(runtime::masks_of(opts), seqlen_kv);
}

}  // namespace flashjit
