// SPDX-License-Identifier: Apache-2.0
// The cache of compiled kernels as an operator sees it: what is in it, whether it is sound, how it is shipped. Engines
// do not need this. Works without a GPU, a driver and NVRTC. docs/cache.md explains layers, bundles and trust.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/engine.h"

namespace flashjit {

// One entry as it is stored. Nothing but `intact` of verify() says that its bytes are sound.
struct CacheEntry {
  std::string name;  // <kernel>.<inputs>.<compiler>, the file's name without .fjc: the same on every machine
  CacheLayer layer = CacheLayer::user;
  std::string location;        // the file, or <bundle>:<member>
  std::uint64_t bytes = 0;     // of the file
  std::int64_t last_used = 0;  // seconds since 1970, to the hour; 0 in a bundle
  // What its header says: name, problem, variant, architecture, nvrtc (version), compiler (build), inputs (digest),
  // registers, spill_bytes, stack_bytes, threads, smem_bytes, compile_ms (not in bundles), version (of flashjit).
  // Empty when the header cannot be read. Control characters are spaces here.
  std::map<std::string, std::string> facts;
};

// A tuning record as it is stored: tuning.h has what it says.
struct CacheRecord {
  std::string path;  // tuning/<device>/<problem>.<bucket>.json: the same in every layer
  CacheLayer layer = CacheLayer::user;
  std::string location;
  std::uint64_t bytes = 0;
};

struct CacheVerification {
  std::uint64_t intact = 0;           // entries
  std::uint64_t bytes = 0;            // of the intact ones
  std::uint64_t records = 0;          // tuning records that are in order
  std::vector<CacheEntry> damaged;    // of a tuning record, the name is its path
  std::vector<std::string> problems;  // layers that cannot be read at all, folders that cannot be made; a line each
  bool ok() const noexcept { return damaged.empty() && problems.empty(); }
};

// What gc and clear removed, or would remove.
struct CacheCollection {
  struct Removed {
    std::string path;
    std::uint64_t bytes = 0;
    std::string why;  // "evicted", "temporary", "damaged", "cleared"
  };
  std::vector<Removed> removed;
  std::uint64_t removed_bytes = 0;
  std::uint64_t kept_entries = 0, kept_bytes = 0;
  // Of the first file or folder that could not be removed or looked into, its path and why; else empty.
  std::string problem;
};

struct CacheImport {
  std::uint64_t imported = 0;                      // entries
  std::uint64_t present = 0;                       // were there already, intact
  std::uint64_t records = 0, records_present = 0;  // the same of tuning records
  std::vector<std::string> damaged;                // members that were refused
};

// What an exported bundle takes of what the cache holds.
struct BundleContent {
  std::vector<std::string> architectures;  // entries and records for these; empty: for all
  // Of the entries those that calls launch by themselves: of attention and of gradients what the default rules or a
  // tuning record says, and all that has no variants. A tuning leaves a hundred others for each problem. And of records
  // what they chose, without the other candidates.
  bool only_chosen = false;
};

// Thread-safe, and safe beside engines of this and other processes on the same directories. Every member throws
// Error(io) when a directory or a file that it was told to write cannot be written; damage on disk is a result and no
// error. A directory that holds files of others and nothing of the cache is refused like one with a wrong owner.
class Cache {
 public:
  // Of the same directories and bundles as an engine with these options.
  explicit Cache(const EngineOptions& options = EngineOptions::from_environment());
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  std::vector<CacheLayerInfo> layers() const;
  // The entries of all layers, in the order in which they are looked up, then by name.
  std::vector<CacheEntry> entries() const;
  // The tuning records of all layers, in that order, then by path.
  std::vector<CacheRecord> records() const;
  // The whole source that the entry was compiled from. Sources are not stored but rendered again: throws
  // Error(unsupported) when this library's templates give another one, as after an upgrade.
  std::string source(const CacheEntry& entry) const;

  // Reads every entry and record of every layer. set_aside: damaged ones of the user's directory are renamed to *.bad,
  // as a look-up would do.
  CacheVerification verify(bool set_aside = false) const;
  // Reads and checks this one.
  bool is_intact(const CacheEntry& entry) const;
  // A bundle by itself. Throws Error(io) when there is no such file.
  static CacheVerification verify_bundle(const std::string& path);

  // Of the user's directory: removes temporary files that writers left behind, entries that were set aside, and entries
  // beyond max_bytes (0: EngineOptions::cache_max_bytes), those first that were not used for longest.
  CacheCollection collect(std::uint64_t max_bytes = 0, bool dry_run = false) const;
  // Removes all that the cache has written to the user's directory, and nothing else; the tag and the lock stay.
  CacheCollection clear(bool dry_run = false) const;

  // A bundle of the intact entries and tuning records of all layers, each once. Equal entries give equal bytes: times
  // are left out.
  std::string export_bundle(const BundleContent& content = {}) const;
  // Stores the intact members of a bundle file in the user's directory; what it has already stays. Throws Error(io,
  // invalid_argument).
  CacheImport import_bundle(const std::string& path) const;

  // The counters of all processes that have used the user's directory and ended, added up; of those that were killed,
  // what they had added by then.
  Counters totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flashjit
