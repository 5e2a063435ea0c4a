// SPDX-License-Identifier: Apache-2.0
// A place that entries and records are read from: a directory or a bundle.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/digest.h"
#include "cache/entry.h"

namespace flashjit::cache {

// Inputs only: never an output, a path or a time.
struct Key {
  std::string name;      // readable prefix of the file name: [a-z0-9_.-]
  Digest inputs;         // source, options and target
  std::string compiler;  // identity of the compiler build, [a-z0-9.-]; empty: any compiler will do (none is installed)
};

struct Lookup {
  std::optional<Entry> entry;
  std::string location;     // the file, or <bundle>:<member>, when there is an entry
  std::uint64_t bytes = 0;  // of the entry's file, when there is an entry
  bool damaged = false;     // something stood there that is no intact entry of this key
};

// One file of a layer that stands where an entry would.
struct StoredEntry {
  std::string name;                                  // <name>.<inputs>.<compiler>
  std::string location;                              // as in Lookup
  std::uint64_t bytes = 0;                           // of the file
  std::int64_t last_used = 0;                        // seconds since the epoch, to the hour; 0 where nobody keeps track
  std::function<std::optional<std::string>()> read;  // all of its bytes; nothing when they cannot be read
  std::function<std::map<std::string, std::string>()> facts;  // from its start alone, not verified; empty when damaged
};

struct RecordLookup {
  std::optional<std::string> bytes;  // all of the file
  std::string location;              // as in Lookup, when something stands there
  bool damaged = false;              // something stands there that is no file of ours, or too large, or damaged
};

// One file of a layer that stands where a record would.
struct StoredRecord {
  std::string path;  // tuning/<device>/<record>.json
  std::string location;
  std::uint64_t bytes = 0;
};

// Thread-safe, and safe with other processes on the same place. Never throws for what it finds.
class Layer {
 public:
  virtual ~Layer() = default;
  // A damaged or unreadable entry is a miss.
  virtual Lookup find(const Key& key) = 0;
  // Everything that stands where an entry would, damaged or not, by name.
  virtual std::vector<StoredEntry> list() = 0;
  // A small file that is no entry: see record_path.h. Of any other path there is none.
  virtual RecordLookup read_record(const std::string& /*path*/) { return {}; }
  virtual std::vector<StoredRecord> list_records() { return {}; }  // by path
  virtual std::string location() const = 0;
  // Why nothing can be read from it, in one line; empty when it is in order or simply not there.
  virtual std::string problem() = 0;
};

}  // namespace flashjit::cache
