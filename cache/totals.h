// SPDX-License-Identifier: Apache-2.0
// Counters that add up over processes: the file <directory>/totals.json.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cache/directory.h"

namespace flashjit::cache {

inline constexpr const char* kTotalsFile = "totals.json";

using Totals = std::map<std::string, std::uint64_t>;

// Empty when there are none, or when the file is damaged.
Totals read_totals(const Directory& directory);

// Adds to each counter, under a lock. False when that cannot be done at once; then nothing was added. Counters
// saturate.
bool add_to_totals(FileSystem& files, const Directory& directory, const Totals& added);

}  // namespace flashjit::cache
