// SPDX-License-Identifier: Apache-2.0
// The kernels of one engine: chosen, made, loaded on devices and kept for launches.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/engine.h"
#include "generator/source.h"
#include "runtime/backends/launch_record.h"
#include "runtime/backends/launch_table.h"
#include "runtime/cuda/module.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/kernels/wanted_kernel.h"
#include "runtime/support/progress.h"
#include "runtime/tuning/autotuner.h"

namespace flashjit::runtime {

// What calls of one key get.
struct Need {
  LaunchKey key;
  Choice choice;
};

class Kernels {
 public:
  Kernels(const generator::Templates& templates, KernelStore& store, Autotuner& autotuner, const Logger& log,
          ProgressCallback progress);
  ~Kernels();

  // --- Without a driver
  KernelInfo compile(const Problem& problem, const Variant& variant, const Architecture& architecture);
  // One beside those of attention.
  KernelFacts compile(const generator::PlainKernel& kernel, const Architecture& architecture);

  // --- With one
  // For the hot path: null when the kernel has not been prepared.
  const LaunchRecord* find(const LaunchKey& key) const noexcept { return table_.find(key); }
  // Make what a call needs, unless it is there: one that names its variant, one of this shape that does not, and one
  // whose tensors TMA cannot describe. Throw Error.
  const LaunchRecord& prepare(const Problem& problem, const Variant& variant, const Device& device);
  // For a call on this stream of the current context.
  const LaunchRecord& prepare(const Problem& problem, const CallShape& shape, Stream stream, const Device& device);
  const LaunchRecord& prepare(const Problem& problem, WithoutTensorMaps, const Device& device);
  // Makes what every call for the problem needs, compiling in parallel. Measures nothing.
  std::vector<KernelInfo> prepare_all(const Problem& problem, const std::optional<Variant>& variant,
                                      const Device& device);
  // From now on calls with this bucket get this variant: those of the problem, and those of others of its class that
  // have had another, unless theirs cannot be made.
  void adopt(const Problem& problem, const ShapeBucket& bucket, const Variant& variant, const Device& device);
  // One beside those of attention; it must outlive this. And several, in parallel.
  CUfunction function_of(const generator::PlainKernel& kernel, const Device& device);
  std::vector<KernelFacts> prepare_all(const std::vector<const generator::PlainKernel*>& kernels, const Device& device);
  // Any other kernel, for measurements.
  CUfunction load(const KernelRequest& request, int threads, int smem_bytes, const Device& device);

 private:
  struct DeviceCounters;
  struct Made;
  class Listing;
  const LaunchRecord& prepare(const Problem& problem, const Need& need, const Device& device);
  std::vector<Problem> others_of_class(const Problem& problem);
  std::vector<Need> needs_of_calls(const Problem& problem, const Device& device);
  Made make(const Problem& problem, const Variant& variant, const Device& device, ProgressReporter& progress);
  Made make(const Problem& problem, const Choice& choice, const Device& device, ProgressReporter& progress);
  // Without a record where make() throws Error.
  Made try_to_make(const Problem& problem, const Variant& variant, const Device& device, ProgressReporter& progress);
  const LaunchRecord* known(const WantedKernel& wanted, const Device& device);
  struct Beside;
  Beside load_beside(const generator::KernelSpec& spec, const Device& device);
  const LaunchRecord& record(const WantedKernel& wanted, const KernelStore::Result& made, const Beside& beside,
                             const Device& device);
  Module& module(const KernelRequest& request, KernelStore::Shared image);
  TileCounters& tile_counters(const Device& device);
  StreamScratch& scratch(const Device& device);

  const generator::Templates& templates_;
  KernelStore& store_;
  Autotuner& autotuner_;
  const Logger& log_;
  const ProgressCallback progress_;
  LaunchTable table_;
  std::mutex mutex_;                                          // of the maps, and held while a module is loaded
  std::map<int, std::unique_ptr<StreamScratch>> scratch_;     // by device; freed when no kernel is left
  std::map<cache::Digest, std::unique_ptr<Module>> modules_;  // by the request's inputs
  std::map<int, std::unique_ptr<DeviceCounters>> counters_;   // by device
  std::map<std::pair<cache::Digest, int>, std::unique_ptr<LaunchRecord>> records_;  // by inputs and device
  std::map<std::pair<const generator::PlainKernel*, int>, CUfunction> functions_;   // by kernel and device
};

}  // namespace flashjit::runtime
