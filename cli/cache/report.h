// SPDX-License-Identifier: Apache-2.0
// How the command shows what is in the cache and what it did.
#pragma once

#include <flashjit/cache.h>

#include <string>

#include "cli/io/command.h"

namespace flashjit::cli {

// One line, without what is 0.
std::string counters_text(const Counters& counters);
std::string date_text(std::int64_t seconds);                           // "2026-01-31 15:00" in UTC; "" for 0
std::string entries_text(std::uint64_t entries, std::uint64_t bytes);  // "12 entries, 3.4 MiB"
std::string records_text(std::uint64_t records);                       // ", 3 tuning records"; "" for 0

// What the entry's header says; empty when it does not say it.
std::string fact(const CacheEntry& entry, const std::string& name);
// For people: the kernel's name, or that of the file.
std::string title(const CacheEntry& entry);

// Tells on stderr which layers cannot be read.
void warn_of_problems(const Cache& cache);

Json describe(const Counters& counters);
Json describe(const CacheLayerInfo& layer);
Json describe(const CacheEntry& entry);
Json describe(const CacheRecord& record);

}  // namespace flashjit::cli
