// SPDX-License-Identifier: Apache-2.0
#include "distributed/equal_parts.h"

#include <algorithm>

namespace flashjit::distributed {

// Without the product seqlen * part, which may be more than 64 bits hold.
Span part_of(std::int64_t seqlen, std::int64_t parts, std::int64_t part) {
  const std::int64_t each = seqlen / parts, longer = seqlen % parts;
  return {part * each + std::min(part, longer), each + (part < longer ? 1 : 0), 1};
}

std::vector<Span> in_zigzag(std::int64_t seqlen, int ranks, int rank) {
  const std::int64_t parts = 2 * std::int64_t{ranks};
  const Span front = part_of(seqlen, parts, rank), back = part_of(seqlen, parts, parts - 1 - rank);
  if (front.first + front.count == back.first) return {{front.first, front.count + back.count, 1}};
  return {front, back};
}

}  // namespace flashjit::distributed
