// SPDX-License-Identifier: Apache-2.0
// A sequence cut into parts that are nearly equal.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/distributed.h"

namespace flashjit::distributed {

// The part of that number, of so many that differ by one in length at most: any may be empty.
Span part_of(std::int64_t seqlen, std::int64_t parts, std::int64_t part);
// Of twice as many parts as there are ranks the one of that number from the front and that from the back: one span
// where they touch.
std::vector<Span> in_zigzag(std::int64_t seqlen, int ranks, int rank);

}  // namespace flashjit::distributed
