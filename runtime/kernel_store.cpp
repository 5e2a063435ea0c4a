// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_store.h"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "flashjit/error.h"

namespace flashjit::runtime {
namespace {

constexpr const char* kSchema = "flashjit-kernel-1";  // a new one forgets every entry that was written before
constexpr double kSlowCompileMs = 300;                // worth a line in the log: somebody waited for it

template <typename T>
T number(const cache::Entry& entry, const std::string& fact) {
  T value{};
  if (const auto it = entry.facts.find(fact); it != entry.facts.end()) {
    std::from_chars(it->second.data(), it->second.data() + it->second.size(), value);
  }
  return value;
}

// Like the cache's own directories these are nobody else's business. A failure shows when the file is opened.
void make_private_directories(const std::filesystem::path& directory) {
  std::error_code error;
  if (directory.has_parent_path() && !std::filesystem::exists(directory.parent_path(), error)) {
    make_private_directories(directory.parent_path());
  }
  if (std::filesystem::create_directory(directory, error)) {
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  }
}

// Cache names are [a-z0-9_.-]; kernel names are nearly that.
std::string file_name(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    if (!allowed) c = '_';
  }
  return name;
}

}  // namespace

KernelStore::KernelStore(KernelStoreOptions options, Nvrtc& nvrtc, const Logger& log)
    : options_(std::move(options)), nvrtc_(nvrtc), log_(log) {}

cache::Key KernelStore::make_key(const KernelRequest& request) const {
  cache::Key key;
  key.name = file_name(request.source.name);
  key.inputs = cache::Hasher()
                   .add("schema", kSchema)
                   .add("source", request.source.text)
                   .add("options", Nvrtc::options_for_key(request.target))
                   .add("target", request.target)
                   .finish();
  return key;
}

KernelStore::Result KernelStore::get(const KernelRequest& request) {
  const cache::Key key = make_key(request);
  std::promise<Shared> promise;
  std::shared_future<Shared> future;
  {
    const std::lock_guard lock(mutex_);
    const auto [it, inserted] = kernels_.try_emplace(key.inputs);
    if (inserted)
      it->second = promise.get_future().share();
    else
      future = it->second;
  }
  if (future.valid()) {
    Shared image = future.get();
    ++counts_.memory_hits;
    return {std::move(image), true};
  }
  try {
    Shared image = make(request, key);
    promise.set_value(image);
    return {std::move(image), false};
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      kernels_.erase(key.inputs);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

KernelStore::Shared KernelStore::make(const KernelRequest& request, cache::Key key) {
  const bool reads = options_.policy != Policy::off && !options_.layers.empty();
  if (reads) {
    key.compiler = nvrtc_.identity();
    if (Shared found = find_on_disk(key)) return found;
    // Who never compiles takes what any compiler made, as does a machine that has none.
    if (options_.policy == Policy::cache_only && !key.compiler.empty()) {
      key.compiler.clear();
      if (Shared found = find_on_disk(key)) return found;
    }
  }
  ++counts_.misses;
  if (options_.policy == Policy::cache_only) {
    throw Error(ErrorCode::cache_miss,
                fmt::format("{}: must be in the cache under policy cache_only, was not", request.source.name));
  }
  return compile(request, std::move(key));
}

KernelStore::Shared KernelStore::find_on_disk(const cache::Key& key) {
  for (const auto& layer : options_.layers) {
    cache::Lookup lookup = layer->find(key);
    if (lookup.rejected) {
      ++counts_.rejected;
      log_(LogLevel::warning, "{}: a damaged cache entry was set aside", key.name);
    }
    if (!lookup.entry) continue;
    const cache::Entry& entry = *lookup.entry;
    auto image = std::make_shared<KernelImage>();
    image->origin = KernelInfo::Origin::disk;
    image->registers = number<int>(entry, "registers");
    image->spill_bytes = number<int>(entry, "spill_bytes");
    image->stack_bytes = number<int>(entry, "stack_bytes");
    image->compile_ms = number<double>(entry, "compile_ms");
    image->cache_file = std::move(lookup.location);
    image->bytes = std::move(lookup.entry->payload);
    ++counts_.disk_hits;
    log_(LogLevel::debug, "{}: from {}", key.name, image->cache_file);
    return image;
  }
  return nullptr;
}

KernelStore::Shared KernelStore::compile(const KernelRequest& request, cache::Key key) {
  CompiledImage compiled = run_compiler(request);
  ++counts_.compiles;
  auto image = std::make_shared<KernelImage>();
  image->bytes = std::move(compiled.bytes);
  image->registers = compiled.registers;
  image->spill_bytes = compiled.spill_bytes;
  image->stack_bytes = compiled.stack_bytes;
  image->compile_ms = compiled.milliseconds;
  key.compiler = nvrtc_.identity();
  image->cache_file = save(key, request, *image, nvrtc_.version());
  const LogLevel level = image->compile_ms > kSlowCompileMs ? LogLevel::info : LogLevel::debug;
  log_(level, "compiled {} in {:.0f} ms", request.source.name, image->compile_ms);
  return image;
}

CompiledImage KernelStore::run_compiler(const KernelRequest& request) {
  try {
    return nvrtc_.compile(request.source.text, request.source.name + ".cu", request.target);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::compile_failed) throw;
    const std::string path = keep_failed_source(request.source);
    const std::string where = path.empty() ? std::string() : "; its source is in " + path;
    throw Error(error.code(), error.what() + where, error.log(), path);
  }
}

std::string KernelStore::save(const cache::Key& key, const KernelRequest& request, const KernelImage& image,
                              const std::string& compiler) {
  if (options_.policy != Policy::compile || options_.layers.empty()) return {};
  cache::Entry entry;
  entry.facts = request.facts;
  entry.facts["name"] = request.source.name;
  entry.facts["entry"] = request.source.entry;
  entry.facts["architecture"] = request.target;
  entry.facts["nvrtc"] = compiler;
  entry.facts["registers"] = std::to_string(image.registers);
  entry.facts["spill_bytes"] = std::to_string(image.spill_bytes);
  entry.facts["stack_bytes"] = std::to_string(image.stack_bytes);
  entry.facts["compile_ms"] = fmt::format("{:.3f}", image.compile_ms);
  entry.payload = image.bytes;
  for (const auto& layer : options_.layers) {
    if (auto location = layer->store(key, entry)) return *location;
  }
  ++counts_.write_failures;
  if (!warned_of_writes_.exchange(true)) {
    log_(LogLevel::warning, "{}: could not be written to the cache; kernels are kept in memory only", key.name);
  }
  return {};
}

std::string KernelStore::keep_failed_source(const generator::Source& source) const {
  if (options_.failed_directory.empty()) return {};
  const std::filesystem::path path =
      std::filesystem::path(options_.failed_directory) / (file_name(source.name) + ".cu");
  make_private_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << source.text;
  file.close();
  return file ? path.string() : std::string();
}

KernelStore::Shared KernelStore::replace(const KernelRequest& request) {
  ++counts_.rejected;
  const cache::Key key = make_key(request);
  Shared image = compile(request, key);
  std::promise<Shared> promise;
  promise.set_value(image);
  const std::lock_guard lock(mutex_);
  kernels_[key.inputs] = promise.get_future().share();
  return image;
}

Counters KernelStore::counters() const {
  Counters counters;
  counters.memory_hits = counts_.memory_hits;
  counters.disk_hits = counts_.disk_hits;
  counters.misses = counts_.misses;
  counters.compiles = counts_.compiles;
  counters.rejected = counts_.rejected;
  counters.write_failures = counts_.write_failures;
  return counters;
}

}  // namespace flashjit::runtime
