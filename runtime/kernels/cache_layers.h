// SPDX-License-Identifier: Apache-2.0
// The layers of the cache that an engine's options name.
#pragma once

#include <memory>
#include <vector>

#include "cache/directory_layer.h"
#include "flashjit/engine.h"

namespace flashjit::runtime {

struct StoreLayer {
  CacheLayer kind;
  std::shared_ptr<cache::Layer> layer;
};

struct CacheLayers {
  std::shared_ptr<cache::UserDirectoryLayer> user;  // null when there is none
  std::vector<StoreLayer> all;                      // the user's too, in the order in which they are asked
};

// Whatever the policy. Opens bundles, and writes nothing. Relative paths stay what they are now when the working
// directory changes.
CacheLayers make_cache_layers(const EngineOptions& options);

std::vector<CacheLayerInfo> describe(const CacheLayers& layers);

}  // namespace flashjit::runtime
