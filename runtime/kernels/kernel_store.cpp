// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/kernel_store.h"

#include <charconv>
#include <utility>

#include "cache/entry_name.h"
#include "flashjit/error.h"
#include "runtime/kernels/counters.h"
#include "runtime/kernels/text_errors.h"
#include "runtime/support/turn.h"

namespace flashjit::runtime {
namespace {

constexpr std::chrono::milliseconds kPatienceOfCalls{5};
constexpr double kSlowCompileMs = 300;  // worth a line in the log: somebody waited for it

template <typename T>
T number(const cache::Facts& facts, const std::string& name) {
  T value{};
  if (const auto it = facts.find(name); it != facts.end()) {
    std::from_chars(it->second.data(), it->second.data() + it->second.size(), value);
  }
  return value;
}

std::shared_ptr<KernelImage> image_of(cache::Entry entry, cache::Key key) {
  auto image = std::make_shared<KernelImage>();
  image->registers = number<int>(entry.facts, "registers");
  image->spill_bytes = number<int>(entry.facts, "spill_bytes");
  image->stack_bytes = number<int>(entry.facts, "stack_bytes");
  image->compile_ms = number<double>(entry.facts, kCompileTimeFact);
  image->bytes = std::move(entry.payload);
  image->key = std::move(key);
  image->facts = std::move(entry.facts);
  return image;
}

KernelInfo::Origin origin_of(CacheLayer kind) {
  const bool is_bundle = kind == CacheLayer::bundle || kind == CacheLayer::embedded;
  return is_bundle ? KernelInfo::Origin::bundle : KernelInfo::Origin::disk;
}

std::uint64_t Counters::*hits_of(CacheLayer kind) {
  switch (kind) {
    case CacheLayer::user:
      return &Counters::user_hits;
    case CacheLayer::system:
      return &Counters::system_hits;
    case CacheLayer::bundle:
      return &Counters::bundle_hits;
    case CacheLayer::embedded:
      break;
  }
  return &Counters::embedded_hits;
}

}  // namespace

KernelStore::KernelStore(KernelStoreOptions options, Compiler& compiler, const Logger& log)
    : options_(std::move(options)), compiler_(compiler), log_(log) {}

KernelStore::~KernelStore() { flush_totals(); }

KernelStore::Result KernelStore::get(const KernelRequest& request) {
  const cache::Key key = request.key();
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
    count(&Counters::memory_hits);
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
  if (reads()) {
    std::call_once(checked_layers_, [this] { warn_of_unusable_layers(); });
    key.compiler = compiler_.identity();
    if (Shared found = look_up(key)) return found;
    if (Shared found = look_up_for_opened_compiler(key)) return found;
  }
  if (options_.policy == Policy::cache_only) {
    count(&Counters::misses);
    throw Error(ErrorCode::cache_miss,
                fmt::format("{}: must be in the cache under policy cache_only, was not", request.source().name));
  }
  if (writes() && !key.compiler.empty()) return compile_in_turn(request, key);
  count(&Counters::misses);
  return compile(request, std::move(key));
}

KernelStore::Shared KernelStore::look_up(cache::Key key) {
  if (Shared found = find_in_layers(key)) return found;
  // Who never compiles takes what any compiler made, as does a machine that has none.
  if (options_.policy != Policy::cache_only || key.compiler.empty()) return nullptr;
  key.compiler.clear();
  return find_in_layers(key);
}

// The compiler that was found may not serve, which shows when it is opened, as it has to be now. Then there is another
// one, or none, and the cache is asked for that one's kernels.
KernelStore::Shared KernelStore::look_up_for_opened_compiler(cache::Key& key) {
  if (options_.policy != Policy::compile || key.compiler.empty()) return nullptr;
  try {
    compiler_.version();
  } catch (const Error&) {  // there is none: compile() throws it again
  }
  if (std::string opened = compiler_.identity(); opened != std::exchange(key.compiler, opened)) return look_up(key);
  return nullptr;
}

KernelStore::Shared KernelStore::find_in_layers(const cache::Key& key) {
  for (const StoreLayer& layer : options_.layers) {
    if (Shared found = find_in(layer, key)) return found;
  }
  return nullptr;
}

KernelStore::Shared KernelStore::find_in(const StoreLayer& layer, const cache::Key& key) {
  cache::Lookup lookup = layer.layer->find(key);
  if (lookup.damaged) {
    count(&Counters::quarantined);
    log_(LogLevel::warning, "{}: a damaged entry of {} counts as a miss", key.name, layer.layer->location());
  }
  if (!lookup.entry) return nullptr;
  cache::Key found = key;
  if (found.compiler.empty()) found.compiler = lookup.entry->facts["compiler"];
  const auto image = image_of(std::move(*lookup.entry), std::move(found));
  image->origin = origin_of(layer.kind);
  image->cache_file = std::move(lookup.location);
  count(hits_of(layer.kind));
  count(&Counters::bytes_read, lookup.bytes);
  log_(LogLevel::debug, "{}: from {}", key.name, image->cache_file);
  return image;
}

KernelStore::Shared KernelStore::compile_in_turn(const KernelRequest& request, const cache::Key& key) {
  Shared published;
  Turn turn(options_.user->lock(key), "compiling", key.name, log_);
  const Turn::Outcome outcome = turn.take(options_.compile_wait, [&] {
    published = find_in({CacheLayer::user, options_.user}, key);
    return published != nullptr;
  });
  if (outcome.waited) count(&Counters::waits);
  if (outcome.timed_out) count(&Counters::wait_timeouts);
  if (outcome.published) return published;
  count(&Counters::misses);
  return compile(request, key);
}

KernelStore::Shared KernelStore::compile(const KernelRequest& request, cache::Key key) {
  CompiledImage compiled = run_compiler(request, key);
  count(&Counters::compiles);
  key.compiler = compiler_.identity();
  const cache::Entry entry = entry_of(request, std::move(compiled), compiler_.version());
  const auto image = image_of(entry, std::move(key));
  if (writes()) save(entry, *image);
  const LogLevel level = image->compile_ms > kSlowCompileMs ? LogLevel::info : LogLevel::debug;
  log_(level, "compiled {} in {:.0f} ms", request.source().name, image->compile_ms);
  return image;
}

CompiledImage KernelStore::run_compiler(const KernelRequest& request, const cache::Key& key) {
  try {
    return compiler_.compile(request.source().text(), request.source().name + ".cu", request.target());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::compile_failed) throw;
    if (const std::vector<TextError> users = errors_of_texts(error.log()); !users.empty()) {
      const std::string more = users.size() == 1 ? "" : fmt::format(" (and {} more)", users.size() - 1);
      throw Error(error.code(), to_string(users.front()) + more, to_log(users));
    }
    const auto file = writes() ? options_.user->keep_failed_source(key.name, request.source().text()) : std::nullopt;
    if (!file) throw;
    throw Error(error.code(), fmt::format("{}; its source is in {}", error.what(), *file), error.log(), *file);
  }
}

void KernelStore::save(const cache::Entry& entry, KernelImage& image) {
  if (auto location = options_.user->store(image.key, entry, &image.cache_problem)) {
    count(&Counters::bytes_written, cache::encode(cache::with_key(entry, image.key)).size());
    image.cache_file = std::move(*location);
    image.cache_problem.clear();
  } else {
    warn_of_failed_write(image.key.name, image.cache_problem);
  }
  flush_totals(kPatienceOfCalls);
}

KernelStore::Shared KernelStore::replace(const KernelRequest& request) {
  count(&Counters::quarantined);
  const cache::Key key = request.key();
  Shared image = compile(request, key);
  std::promise<Shared> promise;
  promise.set_value(image);
  const std::lock_guard lock(mutex_);
  kernels_[key.inputs] = promise.get_future().share();
  return image;
}

std::string KernelStore::bundle() const {
  std::vector<Shared> images;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [inputs, kernel] : kernels_) {
      if (kernel.wait_for(std::chrono::seconds(0)) == std::future_status::ready) images.push_back(kernel.get());
    }
  }
  std::vector<cache::NewMember> members;
  for (const Shared& image : images) members.push_back(member_of(image->key, {image->facts, image->bytes}));
  return cache::encode_bundle(std::move(members));
}

// Said before anything else goes wrong, and once: what the caller can mend.
void KernelStore::warn_of_unusable_layers() {
  for (const StoreLayer& layer : options_.layers) {
    const std::string problem = layer.layer->problem();
    if (problem.empty()) continue;
    const bool is_written = layer.kind == CacheLayer::user && writes();
    if (is_written) warned_of_writes_ = true;
    log_(LogLevel::warning, "{}; {}", problem,
         is_written ? "kernels are kept in memory only" : "this part of the cache is not used");
  }
}

void KernelStore::warn_of_failed_write(const std::string& name, const std::string& problem) {
  count(&Counters::write_failures);
  if (warned_of_writes_.exchange(true)) return;
  log_(LogLevel::warning, "{}: could not be stored: {}; kernels that cannot are kept in memory only", name, problem);
}

Counters KernelStore::counters() const {
  Counters counters = tally_.counters();
  if (options_.user) counters.evicted = options_.user->evicted();
  return counters;
}

// Totals are a convenience: what cannot be added now is added the next time, or not at all.
void KernelStore::flush_totals(std::chrono::milliseconds patience) try {
  if (!writes()) return;
  const std::lock_guard lock(flushing_);
  const Counters now = counters();
  const cache::Totals counted = counted_since(flushed_, now);
  if (!counted.empty() && options_.user->add_to_totals(counted, patience)) flushed_ = now;
} catch (const std::exception&) {
}

}  // namespace flashjit::runtime
