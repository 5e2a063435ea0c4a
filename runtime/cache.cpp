// SPDX-License-Identifier: Apache-2.0
#include "flashjit/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#include "cache/bundle_layer.h"
#include "cache/entry_name.h"
#include "flashjit/error.h"
#include "runtime/cache_layers.h"
#include "runtime/counters.h"
#include "runtime/kernel_entry.h"
#include "runtime/nvrtc.h"
#include "runtime/template_directory.h"
#include "runtime/wanted_kernel.h"

namespace flashjit {
namespace {

struct IntactEntry {
  cache::Key key;
  cache::Entry entry;
};

std::optional<cache::Key> key_of(const std::string& name) {
  return cache::parse_file_name(std::string(name).append(cache::kEntrySuffix));
}

std::optional<IntactEntry> read_intact(const cache::StoredEntry& stored) {
  const auto key = key_of(stored.name);
  const auto bytes = key ? stored.read() : std::nullopt;
  auto entry = bytes ? cache::decode_for(*key, *bytes) : std::nullopt;
  if (!entry) return std::nullopt;
  return IntactEntry{*key, std::move(*entry)};
}

CacheEntry describe(CacheLayer kind, const cache::StoredEntry& stored) {
  return {stored.name, kind, stored.location, stored.bytes, stored.last_used, stored.facts()};
}

void verify_layer(CacheLayer kind, cache::Layer& layer, CacheVerification& result) {
  if (std::string problem = layer.problem(); !problem.empty()) result.problems.push_back(std::move(problem));
  for (const cache::StoredEntry& stored : layer.list()) {
    if (read_intact(stored)) {
      ++result.intact;
      result.bytes += stored.bytes;
    } else {
      result.damaged.push_back(describe(kind, stored));
    }
  }
}

void require_readable(const std::string& path) {
  if (::access(path.c_str(), R_OK) == 0) return;
  throw Error(ErrorCode::io, fmt::format("{}: must be a bundle that can be read, but: {}", path,
                                         std::generic_category().message(errno)));
}

CacheCollection to_collection(const cache::Collected& collected) {
  CacheCollection collection;
  for (const cache::Collected::Removed& removed : collected.removed) {
    collection.removed.push_back({removed.path, removed.bytes, to_string(removed.why)});
    collection.removed_bytes += removed.bytes;
  }
  collection.kept_entries = collected.kept_entries;
  collection.kept_bytes = collected.kept_bytes;
  return collection;
}

// Empty when there is no such fact.
std::string fact(const cache::Facts& facts, const std::string& name) {
  const auto it = facts.find(name);
  return it == facts.end() ? std::string() : it->second;
}

// What an entry with these facts would be compiled from today. Throws Error when they describe no kernel of ours.
runtime::KernelRequest request_of(const cache::Facts& facts, const generator::Templates& templates) {
  const Problem problem = parse_problem(fact(facts, "problem"));
  const Variant variant = parse_variant(fact(facts, "variant"));
  const std::string target = fact(facts, "architecture");
  const Architecture& architecture = find_architecture(runtime::architecture_of(target));
  runtime::KernelRequest request = runtime::want_kernel(problem, variant, architecture, templates).request;
  request.target = target;
  return request;
}

}  // namespace

struct Cache::Impl {
  explicit Impl(const EngineOptions& options)
      : max_bytes(options.cache_max_bytes),
        template_directory(options.template_directory),
        layers(runtime::make_cache_layers(options)) {}

  cache::UserDirectoryLayer& user() const {
    if (!layers.user) {
      throw Error(ErrorCode::invalid_argument, "cache_directory: must be given to change what is in it, was empty");
    }
    if (const std::string problem = layers.user->problem(); !problem.empty()) throw Error(ErrorCode::io, problem);
    return *layers.user;
  }

  const std::uint64_t max_bytes;
  const std::string template_directory;
  const runtime::CacheLayers layers;
};

Cache::Cache(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Cache::~Cache() = default;

std::vector<CacheLayerInfo> Cache::layers() const { return runtime::describe(impl_->layers); }

std::vector<CacheEntry> Cache::entries() const {
  std::vector<CacheEntry> entries;
  for (const auto& [kind, layer] : impl_->layers.all) {
    for (const cache::StoredEntry& stored : layer->list()) entries.push_back(describe(kind, stored));
  }
  return entries;
}

std::string Cache::source(const CacheEntry& entry) const {
  const std::string& directory = impl_->template_directory;
  const generator::Templates templates =
      directory.empty() ? generator::embedded_templates() : runtime::read_templates(directory);
  std::string reason = "these templates give another one";
  try {
    const runtime::KernelRequest request = request_of(entry.facts, templates);
    if (runtime::key_of(request).inputs.hex() == fact(entry.facts, "inputs")) return request.source.text();
  } catch (const Error& error) {
    reason = error.what();
  }
  throw Error(ErrorCode::unsupported, fmt::format("{}: its source cannot be rendered again: {}", entry.name, reason));
}

CacheVerification Cache::verify(bool set_aside) const {
  CacheVerification result;
  for (const auto& [kind, layer] : impl_->layers.all) verify_layer(kind, *layer, result);
  if (!set_aside) return result;
  for (const CacheEntry& damaged : result.damaged) {
    const auto key = damaged.layer == CacheLayer::user ? key_of(damaged.name) : std::nullopt;
    if (key) impl_->layers.user->find(*key);
  }
  return result;
}

bool Cache::is_intact(const CacheEntry& entry) const {
  for (const auto& [kind, layer] : impl_->layers.all) {
    for (const cache::StoredEntry& stored : layer->list()) {
      if (stored.location == entry.location) return read_intact(stored).has_value();
    }
  }
  return false;
}

CacheVerification Cache::verify_bundle(const std::string& path) {
  require_readable(path);
  CacheVerification result;
  cache::BundleLayer bundle(path);
  verify_layer(CacheLayer::bundle, bundle, result);
  return result;
}

CacheCollection Cache::collect(std::uint64_t max_bytes, bool dry_run) const {
  return to_collection(impl_->user().collect(max_bytes != 0 ? max_bytes : impl_->max_bytes, dry_run));
}

CacheCollection Cache::clear(bool dry_run) const { return to_collection(impl_->user().clear(dry_run)); }

std::string Cache::export_bundle(const std::vector<std::string>& architectures) const {
  const auto is_wanted = [&](const std::string& architecture) {
    return architectures.empty() || std::count(architectures.begin(), architectures.end(), architecture) != 0;
  };
  std::map<std::string, cache::NewMember> members;
  for (const auto& [kind, layer] : impl_->layers.all) {
    for (const cache::StoredEntry& stored : layer->list()) {
      if (members.count(stored.name) != 0) continue;
      auto intact = read_intact(stored);
      if (!intact || !is_wanted(fact(intact->entry.facts, "architecture"))) continue;
      members[stored.name] = runtime::member_of(intact->key, std::move(intact->entry));
    }
  }
  std::vector<cache::NewMember> all;
  for (auto& [name, member] : members) all.push_back(std::move(member));
  return cache::encode_bundle(std::move(all));
}

CacheImport Cache::import_bundle(const std::string& path) const {
  require_readable(path);
  cache::BundleLayer bundle(path);
  if (const std::string problem = bundle.problem(); !problem.empty()) throw Error(ErrorCode::invalid_argument, problem);
  cache::UserDirectoryLayer& user = impl_->user();
  CacheImport result;
  for (const cache::StoredEntry& stored : bundle.list()) {
    const auto intact = read_intact(stored);
    if (!intact) {
      result.damaged.push_back(stored.location);
    } else if (user.find(intact->key).entry) {
      ++result.present;
    } else if (user.store(intact->key, intact->entry)) {
      ++result.imported;
    } else {
      throw Error(ErrorCode::io, fmt::format("{}: must be writable and have room, but {} could not be stored there",
                                             user.location(), stored.name));
    }
  }
  return result;
}

Counters Cache::totals() const {
  return impl_->layers.user ? runtime::to_counters(impl_->layers.user->totals()) : Counters{};
}

}  // namespace flashjit
