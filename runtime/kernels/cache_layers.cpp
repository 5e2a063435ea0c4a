// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/cache_layers.h"

#include <fmt/format.h>

#include <filesystem>

#include "cache/bundle_layer.h"
#include "runtime/support/path_list.h"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

std::string embedded_name(std::size_t index) {
  return index == 0 ? std::string("embedded") : fmt::format("embedded {}", index + 1);
}

CacheLayerInfo describe(const StoreLayer& layer) {
  CacheLayerInfo info;
  info.layer = layer.kind;
  info.location = layer.layer->location();
  info.problem = layer.layer->problem();
  for (const cache::StoredEntry& entry : layer.layer->list()) {
    ++info.entries;
    info.bytes += entry.bytes;
  }
  return info;
}

}  // namespace

CacheLayers make_cache_layers(const EngineOptions& options) {
  CacheLayers layers;
  if (!options.cache_directory.empty()) {
    layers.user = std::make_shared<cache::UserDirectoryLayer>(absolute_path(options.cache_directory),
                                                              cache::UserDirectoryOptions{options.cache_max_bytes});
    layers.all.push_back({CacheLayer::user, layers.user});
  }
  for (const std::string& directory : options.system_cache_directories) {
    layers.all.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(absolute_path(directory))});
  }
  for (const std::string& file : options.bundles) {
    layers.all.push_back({CacheLayer::bundle, std::make_shared<cache::BundleLayer>(absolute_path(file))});
  }
  for (std::size_t i = 0; i < options.embedded_bundles.size(); ++i) {
    layers.all.push_back(
        {CacheLayer::embedded, std::make_shared<cache::BundleLayer>(options.embedded_bundles[i], embedded_name(i))});
  }
  return layers;
}

std::vector<CacheLayerInfo> describe(const CacheLayers& layers) {
  std::vector<CacheLayerInfo> infos;
  for (const StoreLayer& layer : layers.all) infos.push_back(describe(layer));
  return infos;
}

}  // namespace flashjit::runtime
