// SPDX-License-Identifier: Apache-2.0
// A call as its caller gave it, and calls that differ from an earlier one in addresses alone, as those of a model's
// layers do.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "flashjit/attention.h"
#include "runtime/call/operands.h"

namespace flashjit::runtime {

struct GivenCall {
  const Tensor &q, &k, &v, &out;
  const AttentionOptions& opts;
};

// A call's tensors, always in the same order: q, k, v, out, those of the options, and what functions capture.
class CallTensors {
 public:
  static constexpr std::size_t kKeys = 1, kValues = 2;

  explicit CallTensors(const GivenCall& call) noexcept;

  int size() const noexcept { return count_; }
  const Tensor& operator[](int i) const noexcept { return *items_[i]; }
  std::uintptr_t address(int i) const noexcept { return reinterpret_cast<std::uintptr_t>(items_[i]->data); }
  // A bit for each option that is a tensor.
  std::uint32_t options() const noexcept { return options_; }

 private:
  std::array<const Tensor*, Operands::kMost> items_;  // not initialised: a call pays for what it has
  int count_ = 0;
  std::uint32_t options_ = 0;
};

// All that a call is, but for the addresses of its tensors, its stream and its plan.
class CallLayout {
 public:
  explicit CallLayout(const GivenCall& call);
  bool is_of(const GivenCall& call, const CallTensors& tensors) const noexcept;

 private:
  AttentionOptions opts_;
  std::uint32_t options_;
  bool values_begin_with_keys_;  // which a call's problem may follow from
  std::vector<Tensor> tensors_;
};

// A copy of a call whose tensors are elsewhere, each at its address. It points to the plan of that call.
struct CallElsewhere {
  CallElsewhere(const GivenCall& call, const std::vector<std::uintptr_t>& addresses);
  GivenCall given() const noexcept { return {q, k, v, out, opts}; }

  Tensor q, k, v, out;
  AttentionOptions opts;
};

}  // namespace flashjit::runtime
