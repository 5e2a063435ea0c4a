// SPDX-License-Identifier: Apache-2.0
// Calls that a benchmark times, with what they read.
#pragma once

#include <flashjit/batch_plan.h>

#include <vector>

#include "cli/bench/bench.h"
#include "cli/bench/cells.h"

namespace flashjit::cli {

struct TimedCall {
  Tensor q, k, v, out;
  AttentionOptions options;
};

// Median microseconds of each. They take turns, so that a drift of the clock meets all of them.
std::vector<double> time_in_turns(const BenchContext& context, const std::vector<TimedCall>& calls);

// New queries over contiguous keys and values, or over the same memory as pages in an order of their own, with a plan.
class DecodeCall {
 public:
  // page_size: 0 for contiguous ones. tensors: at least as large as the cell's.
  DecodeCall(Engine& engine, const DecodeCell& cell, std::int64_t page_size, const BenchTensors& tensors);

  TimedCall timed() const;
  const Variant& variant() const { return plan_.variant(); }

 private:
  TimedCall call_;
  DeviceTensor page_table_, seqused_kv_;
  BatchPlan plan_;
};

// Packed sequences.
class RaggedCall {
 public:
  // tensors: of RaggedCell::kTokens rows.
  RaggedCall(const RaggedCell& cell, const BenchTensors& tensors);

  const TimedCall& timed() const { return call_; }

 private:
  TimedCall call_;
  DeviceTensor starts_;
};

}  // namespace flashjit::cli
