// SPDX-License-Identifier: Apache-2.0
// Where the kernels of an engine run: on the GPUs of this process, or in the emulator.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "flashjit/engine.h"
#include "runtime/call/check_sequences.h"
#include "runtime/call/given_call.h"
#include "runtime/call/operation.h"
#include "runtime/call/validate.h"

namespace flashjit::runtime {

class RememberedCalls;

// Thread-safe.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Tells of driver and devices. Throws nothing for what is wrong with them: that stands in the info.
  virtual void describe(SystemInfo& info) const = 0;

  // Makes what every call for the problem needs. Throws Error.
  virtual std::vector<KernelInfo> prepare(const Problem& problem, int device,
                                          const std::optional<Variant>& variant) = 0;
  // Makes what this call needs; nothing for a call without output elements. Throws Error.
  virtual KernelInfo prepare(const ForwardCall& call, const AttentionOptions& opts) = 0;

  // Makes and loads kernels beside those of forward attention, for a device with this architecture. Throws Error.
  virtual std::vector<KernelFacts> prepare(const std::vector<const generator::PlainKernel*>& kernels, int device) = 0;
  // Of a device; -1: the one of the current context, or 0. Throws Error.
  virtual const Architecture& architecture(int device) const = 0;

  // The device in whose memory a new output of a call with these operands belongs. Throws Error.
  virtual int output_device(const Operands& operands, Stream stream) const = 0;
  // Of the device of a call with these operands. Throws Error.
  virtual int sm_count(const Operands& operands, Stream stream) const = 0;
  virtual const Architecture& architecture(const Operands& operands, Stream stream) const = 0;
  // Blocks that it runs at once where an SM has room for one.
  virtual std::int64_t resident_blocks(const Operands& operands, Stream stream) const {
    return sm_count(operands, stream);
  }
  // Enqueues the call on its stream, or computes it at once where there are no streams. Its kernel is made now when it
  // has not been prepared. Throws Error.
  virtual void run(const ForwardCall& call, const AttentionOptions& opts) = 0;
  // Enqueues a call with a plan as an earlier one with it, where it differs from that in addresses alone; false: it
  // does not, and nothing was done. Throws Error.
  virtual bool repeat(RememberedCalls& /*earlier*/, const GivenCall& /*call*/) { return false; }
  // Has those that follow repeat a call with a plan that ran, where that can be.
  virtual void remember(RememberedCalls& /*calls*/, const GivenCall& /*call*/) noexcept {}
  // Lets `look` read operands of a call, behind the work on its stream, and throws what it throws. Nothing while the
  // stream captures a graph.
  using Look = std::function<void(const ReadInts& read)>;
  virtual void look_at(const Operands& operands, Stream stream, const Look& look) = 0;
  // Likewise what calls with a plan find in its memory, for a call with a variant: the list of tiles of a ragged batch,
  // which a kernel makes, and counters at 0.
  virtual void plan(const ForwardCall& call, const Tensor& memory, const AttentionOptions& opts) = 0;
  // Likewise a kernel beside those of forward attention, that `make` makes for the architecture of the call's device.
  using MakePlainLaunch = std::function<PlainLaunch(const Architecture& architecture)>;
  virtual void run(const Operands& operands, Stream stream, const MakePlainLaunch& make) = 0;
  // Makes and loads the kernel of that, and launches nothing. Throws Error.
  virtual void prepare(const Operands& operands, Stream stream, const MakePlainLaunch& make) = 0;
};

}  // namespace flashjit::runtime
