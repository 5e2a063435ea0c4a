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
#include "cache/text.h"
#include "flashjit/backward.h"
#include "flashjit/error.h"
#include "generator/backward.h"
#include "generator/backward_space.h"
#include "runtime/kernels/cache_layers.h"
#include "runtime/kernels/counters.h"
#include "runtime/kernels/kernel_entry.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/kernels/template_directory.h"
#include "runtime/kernels/wanted_kernel.h"
#include "runtime/tuning/cache_records.h"
#include "runtime/tuning/tuning_records.h"

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

// For people and their terminals: an entry may come from others.
cache::Facts printable(const cache::Facts& facts) {
  cache::Facts result;
  for (const auto& [name, value] : facts) {
    result[cache::without_control_characters(name)] = cache::without_control_characters(value);
  }
  return result;
}

CacheEntry describe(CacheLayer kind, const cache::StoredEntry& stored) {
  return {stored.name, kind, stored.location, stored.bytes, stored.last_used, printable(stored.facts())};
}

void verify_layer(const runtime::StoreLayer& layer, CacheVerification& result) {
  if (std::string problem = layer.layer->problem(); !problem.empty()) result.problems.push_back(std::move(problem));
  for (const cache::StoredEntry& stored : layer.layer->list()) {
    if (read_intact(stored)) {
      ++result.intact;
      result.bytes += stored.bytes;
    } else {
      result.damaged.push_back(describe(layer.kind, stored));
    }
  }
  runtime::verify_records(layer, result);
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
  collection.problem = collected.problem;
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
  return runtime::WantedKernel({problem, variant, architecture}, templates, target).request;
}

std::vector<Variant> default_variants(const Problem& problem, const Architecture& architecture) {
  return runtime::variants_of_calls(problem, {}, architecture);
}
std::vector<BackwardVariant> default_variants(const BackwardProblem& problem, const Architecture& architecture) {
  return generator::default_backward_variants(generator::backward_problem(problem.attention), architecture);
}

// Which variants calls of a pass choose by themselves: by the default rules, or by a record.
template <class Pass>
class ChosenVariants {
 public:
  using Problem = typename Pass::Problem;
  using Variant = typename Pass::Variant;

  ChosenVariants(const runtime::CacheLayers& layers, const runtime::Logger& log)
      : records_({nullptr, layers.all, runtime::builtin_records()}, log) {}

  bool has(const Problem& problem, const Variant& variant, const Architecture& architecture) {
    std::vector<Variant>& variants = variants_[{to_string(problem), architecture.name}];
    if (variants.empty()) {
      variants = default_variants(problem, architecture);
      for (const Variant& recorded : records_.chosen(problem, architecture)) variants.push_back(recorded);
    }
    return std::count(variants.begin(), variants.end(), variant) != 0;
  }

 private:
  runtime::TuningRecordsOf<Pass> records_;
  std::map<std::pair<std::string, std::string>, std::vector<Variant>> variants_;  // by problem and architecture
};

// Which kernels calls take where nobody names a variant: those of the chosen ones, and all that have no variants, as
// what stands beside attention and what append and merge launch.
class ChosenKernels {
 public:
  explicit ChosenKernels(const runtime::CacheLayers& layers) : forward_(layers, log_), backward_(layers, log_) {}

  // Not one that this release does not know, nor one that only stands for users' texts where variants are chosen.
  bool has(const cache::Facts& facts) try {
    const Architecture& architecture = find_architecture(runtime::architecture_of(fact(facts, "architecture")));
    if (const std::string text = fact(facts, "problem"); !text.empty()) {
      const Problem problem = parse_problem(text);
      return !problem.score && !problem.mask &&
             forward_.has(problem, parse_variant(fact(facts, "variant")), architecture);
    }
    // Of gradients problem and variant stand in the name alone: bwd-bf16-d64.mma-q64-kv128-w8-r1-s1.sm_80
    const std::string name = fact(facts, "name");
    if (name.rfind("bwd-", 0) != 0) return true;
    const std::size_t variant = name.find('.') + 1, target = name.find('.', variant);
    const BackwardProblem problem = parse_backward_problem(name.substr(0, variant - 1));
    return !problem.attention.score && !problem.attention.mask &&
           backward_.has(problem, parse_backward_variant(name.substr(variant, target - variant)), architecture);
  } catch (const Error&) {
    return false;
  }

 private:
  const runtime::Logger log_{nullptr};
  ChosenVariants<runtime::ForwardPass> forward_;
  ChosenVariants<runtime::BackwardPass> backward_;
};

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

std::vector<CacheRecord> Cache::records() const {
  std::vector<CacheRecord> records;
  for (const runtime::StoreLayer& layer : impl_->layers.all) {
    for (CacheRecord& record : runtime::list_records(layer)) records.push_back(std::move(record));
  }
  return records;
}

std::string Cache::source(const CacheEntry& entry) const {
  const std::string& directory = impl_->template_directory;
  const generator::Templates templates =
      directory.empty() ? generator::embedded_templates() : runtime::read_templates(directory);
  std::string reason = "these templates give another one";
  try {
    const runtime::KernelRequest request = request_of(entry.facts, templates);
    if (request.key().inputs.hex() == fact(entry.facts, "inputs")) return request.source().text();
  } catch (const Error& error) {
    reason = error.what();
  }
  throw Error(ErrorCode::unsupported, fmt::format("{}: its source cannot be rendered again: {}", entry.name, reason));
}

CacheVerification Cache::verify(bool set_aside) const {
  CacheVerification result;
  for (const runtime::StoreLayer& layer : impl_->layers.all) verify_layer(layer, result);
  if (std::string obstacle = impl_->layers.user ? impl_->layers.user->obstacle() : ""; !obstacle.empty())
    result.problems.push_back(std::move(obstacle));
  if (!set_aside) return result;
  for (const CacheEntry& damaged : result.damaged) {
    if (damaged.layer != CacheLayer::user) continue;
    if (const auto key = key_of(damaged.name)) {
      impl_->layers.user->find(*key);
    } else {
      impl_->layers.user->set_aside_record(damaged.name);
    }
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
  verify_layer({CacheLayer::bundle, std::make_shared<cache::BundleLayer>(path)}, result);
  return result;
}

CacheCollection Cache::collect(std::uint64_t max_bytes, bool dry_run) const {
  return to_collection(impl_->user().collect(max_bytes != 0 ? max_bytes : impl_->max_bytes, dry_run));
}

CacheCollection Cache::clear(bool dry_run) const { return to_collection(impl_->user().clear(dry_run)); }

std::string Cache::export_bundle(const BundleContent& content) const {
  const std::vector<std::string>& wanted = content.architectures;
  const auto is_wanted = [&](const std::string& architecture) {
    return wanted.empty() || std::count(wanted.begin(), wanted.end(), architecture) != 0;
  };
  ChosenKernels chosen(impl_->layers);
  std::map<std::string, cache::NewMember> members;
  for (const auto& [kind, layer] : impl_->layers.all) {
    for (const cache::StoredEntry& stored : layer->list()) {
      if (members.count(stored.name) != 0) continue;
      auto intact = read_intact(stored);
      if (!intact || !is_wanted(fact(intact->entry.facts, "architecture"))) continue;
      if (content.only_chosen && !chosen.has(intact->entry.facts)) continue;
      members[stored.name] = runtime::member_of(intact->key, std::move(intact->entry));
    }
  }
  std::vector<cache::NewMember> all = runtime::export_records(impl_->layers, is_wanted, content.only_chosen);
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
    } else if (std::string problem; user.store(intact->key, intact->entry, &problem)) {
      ++result.imported;
    } else {
      throw Error(ErrorCode::io, fmt::format("{}: could not be stored: {}", stored.name, problem));
    }
  }
  runtime::import_records(bundle, user, result);
  return result;
}

Counters Cache::totals() const {
  return impl_->layers.user ? runtime::to_counters(impl_->layers.user->totals()) : Counters{};
}

}  // namespace flashjit
