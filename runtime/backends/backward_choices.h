// SPDX-License-Identifier: Apache-2.0
// Which variants of gradients records chose, for calls: looked up once for each kind of call.
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>

#include "runtime/backends/kernels.h"
#include "runtime/backends/launch_table.h"
#include "runtime/call/backward.h"
#include "runtime/tuning/autotuner.h"

namespace flashjit::runtime {

// Of one engine, of which all that it is given is. Thread-safe.
class BackwardChoices {
 public:
  BackwardChoices(AutotunerOf<BackwardPass>& autotuner, Kernels& kernels, PlainKernels& plain_kernels,
                  const Logger& log);

  // For a call on a GPU; nothing: no record holds, or its kernel cannot be had, as from a bundle of the defaults
  // without a compiler. Measures where the policy says so, but never while the stream is captured.
  std::optional<BackwardVariant> find(const BackwardCall& call, Stream stream);
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

  bool can_be_had(const BackwardProblem& problem, const BackwardVariant& variant, const Device& device);

  AutotunerOf<BackwardPass>& autotuner_;
  Kernels& kernels_;
  PlainKernels& plain_kernels_;
  const Logger& log_;
  std::mutex mutex_;  // of what follows
  std::unordered_map<Key, std::optional<BackwardVariant>, Hash> known_;
};

}  // namespace flashjit::runtime
