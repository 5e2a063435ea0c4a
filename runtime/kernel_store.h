// SPDX-License-Identifier: Apache-2.0
// From a source to its cubin or PTX: this engine's memory, then the cache, then NVRTC. Needs no driver.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/layer.h"
#include "flashjit/engine.h"
#include "generator/source.h"
#include "runtime/logger.h"
#include "runtime/nvrtc.h"

namespace flashjit::runtime {

struct KernelRequest {
  generator::Source source;
  std::string target;                        // see Nvrtc::compile
  std::map<std::string, std::string> facts;  // for people who look into the cache; the store adds its own
};

struct KernelImage {
  std::string bytes;  // a cubin, or PTX
  KernelInfo::Origin origin = KernelInfo::Origin::compiled;
  int registers = 0;
  int spill_bytes = 0;
  int stack_bytes = 0;
  double compile_ms = 0;
  std::string cache_file;  // empty when it is not on disk
};

struct KernelStoreOptions {
  Policy policy = Policy::compile;
  std::vector<std::shared_ptr<cache::Layer>> layers;  // read in order; the first one that can is written to
  std::string failed_directory;                       // where refused sources are kept; empty: nowhere
};

// Thread-safe. Equal requests at the same time compile once; different ones compile side by side.
class KernelStore {
 public:
  using Shared = std::shared_ptr<const KernelImage>;

  KernelStore(KernelStoreOptions options, Nvrtc& nvrtc, const Logger& log);

  struct Result {
    Shared image;
    bool from_memory = false;
  };
  // Throws Error(no_compiler, unsupported, compile_failed, cache_miss). A failure is not remembered.
  Result get(const KernelRequest& request);

  // For a cubin that was intact and that the driver refused all the same: compiles anew and replaces it everywhere.
  Shared replace(const KernelRequest& request);

  bool may_compile() const noexcept { return options_.policy != Policy::cache_only; }

  Counters counters() const;

 private:
  struct Counts {
    std::atomic<std::uint64_t> memory_hits{0}, disk_hits{0}, misses{0}, compiles{0}, rejected{0}, write_failures{0};
  };
  struct DigestHash {
    std::size_t operator()(const cache::Digest& digest) const noexcept { return digest.low; }
  };

  cache::Key make_key(const KernelRequest& request) const;
  Shared make(const KernelRequest& request, cache::Key key);
  Shared find_on_disk(const cache::Key& key);
  Shared compile(const KernelRequest& request, cache::Key key);
  CompiledImage run_compiler(const KernelRequest& request);
  std::string save(const cache::Key& key, const KernelRequest& request, const KernelImage& image,
                   const std::string& compiler);
  std::string keep_failed_source(const generator::Source& source) const;

  const KernelStoreOptions options_;
  Nvrtc& nvrtc_;
  const Logger& log_;
  Counts counts_;
  std::atomic<bool> warned_of_writes_{false};
  std::mutex mutex_;
  std::unordered_map<cache::Digest, std::shared_future<Shared>, DigestHash> kernels_;
};

}  // namespace flashjit::runtime
