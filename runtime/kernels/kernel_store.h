// SPDX-License-Identifier: Apache-2.0
// From a source to its cubin or PTX: this engine's memory, then the layers of the cache, then the compiler. Needs no
// driver.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/directory_layer.h"
#include "flashjit/engine.h"
#include "runtime/kernels/cache_layers.h"
#include "runtime/kernels/compiler.h"
#include "runtime/kernels/counters.h"
#include "runtime/kernels/kernel_entry.h"
#include "runtime/support/logger.h"

namespace flashjit::runtime {

struct KernelImage {
  std::string bytes;  // a cubin, or PTX
  KernelInfo::Origin origin = KernelInfo::Origin::compiled;
  int registers = 0;
  int spill_bytes = 0;
  int stack_bytes = 0;
  double compile_ms = 0;
  std::string cache_file;     // empty when it is in memory only
  std::string cache_problem;  // why it could not be stored; empty when it was, or was not to be
  cache::Key key;             // with the compiler that made it
  cache::Facts facts;         // of its entry in the cache
};

struct KernelStoreOptions {
  Policy policy = Policy::compile;
  std::shared_ptr<cache::UserDirectoryLayer> user;  // what is compiled is stored here; null: nowhere
  std::vector<StoreLayer> layers;                 // all that are read, the user's too, in order; not under Policy::off
  std::chrono::milliseconds compile_wait{30000};  // for a kernel that somebody else is compiling
};

// Thread-safe. Equal requests at the same time compile once; different ones compile side by side.
class KernelStore {
 public:
  using Shared = std::shared_ptr<const KernelImage>;

  KernelStore(KernelStoreOptions options, Compiler& compiler, const Logger& log);
  ~KernelStore();

  struct Result {
    Shared image;
    bool from_memory = false;
  };
  // Throws Error(no_compiler, unsupported, compile_failed, cache_miss). A failure is not remembered.
  Result get(const KernelRequest& request);

  // For a cubin that was intact and that the driver refused all the same: compiles anew and replaces it everywhere.
  Shared replace(const KernelRequest& request);

  bool may_compile() const noexcept { return options_.policy != Policy::cache_only; }

  // Of all kernels that get() has given so far. Where a kernel came from and how long it took make no difference.
  std::string bundle() const;

  Counters counters() const;
  // Where other parts of the engine count, too.
  Tally& tally() noexcept { return tally_; }
  // Adds what was counted since the last time to the totals of the user's directory; the end of the store does so too.
  // Others that do so at the same time are waited for as long as patience allows: not for long where a call waits.
  void flush_totals(std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  struct DigestHash {
    std::size_t operator()(const cache::Digest& digest) const noexcept { return digest.low; }
  };

  bool reads() const noexcept { return options_.policy != Policy::off && !options_.layers.empty(); }
  bool writes() const noexcept { return options_.policy == Policy::compile && options_.user; }

  Shared make(const KernelRequest& request, cache::Key key);
  Shared look_up(cache::Key key);
  Shared look_up_for_opened_compiler(cache::Key& key);
  Shared find_in_layers(const cache::Key& key);
  Shared find_in(const StoreLayer& layer, const cache::Key& key);
  Shared compile_in_turn(const KernelRequest& request, const cache::Key& key);
  Shared compile(const KernelRequest& request, cache::Key key);
  CompiledImage run_compiler(const KernelRequest& request, const cache::Key& key);
  void save(const cache::Entry& entry, KernelImage& image);
  void warn_of_unusable_layers();
  void warn_of_failed_write(const std::string& name, const std::string& problem);
  void count(std::uint64_t Counters::*counter, std::uint64_t times = 1) { tally_.add(counter, times); }

  const KernelStoreOptions options_;
  Compiler& compiler_;
  const Logger& log_;
  std::once_flag checked_layers_;
  std::atomic<bool> warned_of_writes_{false};

  Tally tally_;
  std::mutex flushing_;
  Counters flushed_;

  mutable std::mutex mutex_;
  std::unordered_map<cache::Digest, std::shared_future<Shared>, DigestHash> kernels_;
};

}  // namespace flashjit::runtime
