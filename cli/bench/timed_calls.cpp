// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/timed_calls.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace flashjit::cli {
namespace {

constexpr int kTurns = 5;

Tensor view(const DeviceTensor& memory, const Dims& shape) { return {memory.data(), memory.dtype(), shape}; }

DeviceTensor ints_on_device(std::vector<std::int32_t> values, const Dims& shape, int device) {
  return DeviceTensor::from_host(Tensor(values.data(), DType::i32, shape), nullptr, device);
}

}  // namespace

std::vector<double> time_in_turns(const BenchContext& context, const std::vector<TimedCall>& calls) {
  MeasureOptions measure = measure_options(context);
  const int turns = std::min(kTurns, measure.repeats);
  measure.repeats /= turns;
  std::vector<std::vector<double>> times(calls.size());
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      context.interrupt.check();
      const TimedCall& call = calls[i];
      times[i].push_back(context.engine.measure(call.q, call.k, call.v, call.out, call.options, measure).median_us);
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_call : times) medians.push_back(median(of_call));
  return medians;
}

DecodeCall::DecodeCall(Engine& engine, const DecodeCell& cell, std::int64_t page_size, const BenchTensors& tensors) {
  const Dims rows = cell.k_shape();
  const std::int64_t pages = page_size > 0 ? cell.batch * cell.context / page_size : 0;
  const Dims kept = page_size > 0 ? Dims{pages, page_size, rows[2], rows[3]} : rows;
  call_ = {view(tensors.q, cell.q_shape()),
           view(tensors.k, kept),
           view(tensors.v, kept),
           view(tensors.out, cell.q_shape()),
           {}};
  call_.options.causal = true;
  if (tensors.scales.data())
    call_.options.k_scale = call_.options.v_scale =
        Tensor(tensors.scales.data(), DType::f32, {kept[0], kept[1], kept[2]});
  if (page_size > 0) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    const int device = tensors.q.device();
    page_table_ = ints_on_device(std::move(order), {cell.batch, pages / cell.batch}, device);
    const auto used = static_cast<std::int32_t>(cell.context);
    seqused_kv_ = ints_on_device(std::vector(static_cast<std::size_t>(cell.batch), used), {cell.batch}, device);
    call_.options.page_table = page_table_.view(), call_.options.seqused_kv = seqused_kv_.view();
  }
  plan_ = engine.plan(call_.q, call_.k, call_.v, call_.options);
}

TimedCall DecodeCall::timed() const {
  TimedCall call = call_;
  call.options.plan = &plan_;
  return call;
}

RaggedCall::RaggedCall(const RaggedCell& cell, const BenchTensors& tensors) {
  std::vector<std::int32_t> starts{0};
  for (const std::int32_t length : cell.lengths) starts.push_back(starts.back() + length);
  const auto count = static_cast<std::int64_t>(starts.size());
  const Dims shape{1, starts.back(), cell.heads(), cell.head_dim};
  starts_ = ints_on_device(std::move(starts), {count}, tensors.q.device());
  call_ = {view(tensors.q, shape), view(tensors.k, shape), view(tensors.v, shape), view(tensors.out, shape), {}};
  AttentionOptions& options = call_.options;
  options.causal = true;
  options.cu_seqlens_q = options.cu_seqlens_kv = starts_.view();
  options.max_seqlen_q = options.max_seqlen_kv = cell.longest();
}

}  // namespace flashjit::cli
