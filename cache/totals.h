// SPDX-License-Identifier: Apache-2.0
// Counters that add up over processes: the file <directory>/totals.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "cache/directory.h"

namespace flashjit::cache {

inline constexpr const char* kTotalsFile = "totals.json";

using Totals = std::map<std::string, std::uint64_t>;

// Empty when there are none, or when the file is damaged or somebody else's.
Totals read_totals(const Directory& directory);

// Whether a file of this name is there, and is the cache's.
bool holds_totals(const Directory& directory);

// Adds to each counter, under a lock, for which others that add at the same time are waited for as long as patience
// allows; each takes some 100 microseconds. False when nothing was added: no lock, no room, a file of somebody else.
// Counters saturate.
bool add_to_totals(FileSystem& files, const Directory& directory, const Totals& added,
                   std::chrono::milliseconds patience);

}  // namespace flashjit::cache
