// SPDX-License-Identifier: Apache-2.0
// The emulator as the device of an engine: PTX takes the place of cubins, host memory that of the device's. Needs no
// driver.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/emulator.h"
#include "flashjit/engine.h"
#include "generator/source.h"
#include "runtime/backends/backend.h"
#include "runtime/call/validate.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/kernels/wanted_kernel.h"
#include "runtime/support/progress.h"

namespace flashjit::runtime {

// The memory of the call's tensors, each with exactly the bytes that its view spans. Views that share memory, as slices
// of a fused tensor do, become one buffer.
emulator::Memory memory_of(const Operands& operands);

// One device, whose memory is the host's and which has no streams.
class EmulatedBackend : public Backend {
 public:
  // options: of run().
  EmulatedBackend(const Architecture& architecture, const generator::Templates& templates, KernelStore& store,
                  ProgressCallback progress, const EmulationOptions& options);
  ~EmulatedBackend() override;

  void describe(SystemInfo& info) const override;
  // These throw Error(invalid_argument) for an ordinal that is not this device's, and for a stream.
  std::vector<KernelInfo> prepare(const Problem& problem, int device, const std::optional<Variant>& variant) override;
  KernelInfo prepare(const ForwardCall& call, const AttentionOptions& opts) override;
  std::vector<KernelFacts> prepare(const std::vector<const generator::PlainKernel*>& kernels, int device) override;
  const Architecture& architecture(int device) const override;
  int output_device(const Operands& operands, Stream stream) const override;
  int sm_count(const Operands& operands, Stream stream) const override;
  const Architecture& architecture(const Operands& operands, Stream stream) const override;
  std::int64_t resident_blocks(const Operands&, Stream) const override { return options_.resident_blocks; }
  // Both throw what making the kernel throws, and Error(unsupported) for PTX that the emulator does not know; run()
  // throws Error(kernel_fault) for any finding.
  void run(const ForwardCall& call, const AttentionOptions& opts) override;
  void run(const Operands& operands, Stream stream, const MakePlainLaunch& make) override;
  void prepare(const Operands& operands, Stream stream, const MakePlainLaunch& make) override;
  void look_at(const Operands& operands, Stream stream, const Look& look) override;
  void plan(const ForwardCall& call, const Tensor& memory, const AttentionOptions& opts) override;
  emulator::Report emulate(const ForwardCall& call, const AttentionOptions& opts, const EmulationOptions& options);
  emulator::Report emulate(const Operands& operands, Stream stream, const MakePlainLaunch& make,
                           const EmulationOptions& options);

 private:
  struct PlainProgram;
  struct Kernel;
  WantedKernel want(const Problem& problem, const Variant& variant) const;
  const Kernel* known(const WantedKernel& wanted);
  const Kernel& make(const WantedKernel& wanted);
  const PlainProgram& beside(const generator::PlainKernel& kernel);
  Variant variant_of(const ForwardCall& call) const;
  const Kernel& kernel_of(const ForwardCall& call);

  const Architecture& architecture_;
  const generator::Templates& templates_;
  KernelStore& store_;
  const ProgressCallback progress_;
  const EmulationOptions options_;
  std::mutex mutex_;                                                     // of the maps
  std::map<cache::Digest, std::unique_ptr<const Kernel>> kernels_;       // by the request's inputs; never removed
  std::map<cache::Digest, std::unique_ptr<const PlainProgram>> beside_;  // likewise
};

}  // namespace flashjit::runtime
