// SPDX-License-Identifier: Apache-2.0
// The tuner's bench on a GPU.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "generator/source.h"
#include "runtime/backends/gpu_operation.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/module.h"
#include "runtime/cuda/private_stream.h"
#include "runtime/cuda/tile_counters.h"
#include "runtime/cuda/timer.h"
#include "runtime/cuda/zeroed_memory.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/tuning/tuner.h"
#include "runtime/tuning/tuning_inputs.h"

namespace flashjit::runtime {

// Of one problem and shape on one device. Its tensors, its stream and what it loads are its own and gone with it; what
// it compiles the store keeps. To be destroyed in the thread that made it and uses it. May be used while streams
// capture graphs. A kernel that leaves the context unusable, as one with an illegal address does, is more than a wrong
// candidate: then check() throws Error(driver).
class GpuTuningBench : public TuningBench {
 public:
  // jobs: kernels that are compiled at once; 0: as many as cores and free memory allow. Store, templates and device
  // must outlive it. The problem is its own class, and the sizes of the shape are at least 1. Throws
  // Error(invalid_argument) for a shape that cannot be and for a block mask without a predicate, Error(driver) when its
  // tensors do not fit into the device's memory, Error(unsupported) when no kernel here runs on the device, and for a
  // problem with a block mask what compiling throws.
  GpuTuningBench(KernelStore& store, const generator::Templates& templates, const Device& device,
                 const Problem& problem, const CallShape& shape, int jobs = 0);
  ~GpuTuningBench() override;
  GpuTuningBench(const GpuTuningBench&) = delete;
  GpuTuningBench& operator=(const GpuTuningBench&) = delete;

  std::vector<Compiled> compile(const std::vector<Variant>& variants, const std::function<bool()>& stop,
                                const std::function<void(int)>& done) override;
  // The next two: of variants that compile() has made.
  std::string check(const Variant& variant) override;
  std::vector<double> time(const Variant& variant, int launches) override;
  double seconds() override;

 private:
  struct Kernel;
  class DeviceCall;

  Compiled compile_one(const Variant& variant, std::unique_ptr<Kernel>& kernel) const;
  void load(Kernel& kernel);
  void make_block_mask(const DeviceCall& on_device, const TuningCall& inputs);
  std::unique_ptr<Module> open_module(const KernelImage& image, const std::string& entry) const;
  std::string check_small(const Kernel& kernel, std::size_t index);
  std::string check_timed(Kernel& kernel);
  HostTensor checked_rows() const;
  std::unique_ptr<DeviceCall> make_timed_call() const;
  std::vector<Expected> expected() const;

  const Driver& driver_;
  const Device& device_;
  const Architecture& architecture_;
  const generator::Templates& templates_;
  KernelStore& store_;
  const Problem problem_;
  const int jobs_;
  const TimedCase timed_case_;
  const std::vector<CheckCase> check_cases_;

  std::unique_ptr<Module> block_mask_module_;  // of a problem that has one; runs on the stream until that ends
  const PrivateStream stream_;
  ZeroedMemory counter_memory_;
  TileCounters tile_counters_;
  const std::unique_ptr<DeviceCall> timed_call_;
  const std::shared_future<std::vector<Expected>> expected_;  // of check_cases_, then of timed_case_
  std::vector<std::unique_ptr<DeviceCall>> check_calls_;
  KernelTimer timer_;
  std::map<Variant, std::unique_ptr<Kernel>> kernels_;  // that are loaded
};

}  // namespace flashjit::runtime
