// SPDX-License-Identifier: Apache-2.0
// Which variants of gradients records chose, for calls: looked up once for each kind of call.
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>

#include "runtime/backends/launch_table.h"
#include "runtime/call/backward.h"
#include "runtime/tuning/autotuner.h"

namespace flashjit::runtime {

// Of one engine. Thread-safe.
class BackwardChoices {
 public:
  // For a call on a GPU; nothing: no record holds. Measures where the policy says so, but never while the stream is
  // captured.
  std::optional<BackwardVariant> find(const BackwardCall& call, Stream stream, AutotunerOf<BackwardPass>& autotuner);
  // From now on records are asked anew.
  void forget();

 private:
  struct Key {
    LaunchKey launch;
    bool slopes, bias, deterministic;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept { return key.launch.hash(); }
  };

  std::mutex mutex_;  // of what follows
  std::unordered_map<Key, std::optional<BackwardVariant>, Hash> known_;
};

}  // namespace flashjit::runtime
