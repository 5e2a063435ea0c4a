// SPDX-License-Identifier: Apache-2.0
// The tuning records among what a cache holds, for Cache.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cache/bundle.h"
#include "flashjit/cache.h"
#include "runtime/kernels/cache_layers.h"

namespace flashjit::runtime {

std::vector<CacheRecord> list_records(const StoreLayer& layer);

// Counts those that are in order, and tells of those that are damaged. What a later release wrote is in order.
void verify_records(const StoreLayer& layer, CacheVerification& result);

// Those that a look-up would give, as they are or only with what they chose. is_wanted is asked about their
// architecture.
std::vector<cache::NewMember> export_records(const CacheLayers& layers,
                                             const std::function<bool(const std::string&)>& is_wanted,
                                             bool only_chosen);

// What the user's directory has already stays. Throws Error(io) when one cannot be stored.
void import_records(cache::Layer& bundle, cache::UserDirectoryLayer& user, CacheImport& result);

}  // namespace flashjit::runtime
