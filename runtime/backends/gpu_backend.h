// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "runtime/backends/backend.h"
#include "runtime/backends/kernels.h"

namespace flashjit::runtime {

// The GPUs of this process. Opens the driver with the first call or preparation.
class GpuBackend : public Backend {
 public:
  explicit GpuBackend(Kernels& kernels);

  void describe(SystemInfo& info) const override;
  std::vector<KernelInfo> prepare(const Problem& problem, int device, const std::optional<Variant>& variant) override;
  KernelInfo prepare(const ForwardCall& call, const AttentionOptions& opts) override;
  std::vector<KernelFacts> prepare(const std::vector<const generator::PlainKernel*>& kernels, int device) override;
  const Architecture& architecture(int device) const override;
  int output_device(const Operands& operands, Stream stream) const override;
  int sm_count(const Operands& operands, Stream stream) const override;
  const Architecture& architecture(const Operands& operands, Stream stream) const override;
  void run(const ForwardCall& call, const AttentionOptions& opts) override;
  bool repeat(RememberedCalls& earlier, const GivenCall& call) override;
  void remember(RememberedCalls& calls, const GivenCall& call) noexcept override;
  void look_at(const Operands& operands, Stream stream, const Look& look) override;
  void plan(const ForwardCall& call, const Tensor& memory, const AttentionOptions& opts) override;
  void run(const Operands& operands, Stream stream, const MakePlainLaunch& make) override;
  void prepare(const Operands& operands, Stream stream, const MakePlainLaunch& make) override;

 private:
  void try_to_remember(RememberedCalls& calls, const GivenCall& call);

  const std::uint64_t number_;  // that no other backend of the process has, not even a later one
  Kernels& kernels_;
};

}  // namespace flashjit::runtime
