// SPDX-License-Identifier: Apache-2.0
// A place that holds entries: today a directory; bundles and read-only system directories are further layers.
#pragma once

#include <optional>
#include <string>

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
  std::string location;   // the file, when there is an entry
  bool rejected = false;  // something stood there but was damaged
};

// Thread-safe, and safe with other processes on the same place.
class Layer {
 public:
  virtual ~Layer() = default;
  // Never throws for what it finds: a damaged or unreadable entry is a miss.
  virtual Lookup find(const Key& key) = 0;
  // The place where it was stored, or nothing when it could not be; never throws, and never leaves half an entry.
  virtual std::optional<std::string> store(const Key& key, const Entry& entry) = 0;
};

}  // namespace flashjit::cache
