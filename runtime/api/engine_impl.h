// SPDX-License-Identifier: Apache-2.0
// What an engine is made of.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/engine.h"
#include "generator/source.h"
#include "runtime/backends/backward_choices.h"
#include "runtime/backends/emulated_backend.h"
#include "runtime/backends/gpu_backend.h"
#include "runtime/backends/kernels.h"
#include "runtime/call/merge.h"
#include "runtime/call/plain_kernels.h"
#include "runtime/kernels/cache_layers.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/reference/reference_scores.h"
#include "runtime/support/logger.h"
#include "runtime/tuning/autotuner.h"
#include "runtime/tuning/tuning_records.h"

namespace flashjit {

struct Engine::Impl {
  explicit Impl(EngineOptions given);

  // Throws Error(unsupported), which names the member function, on an engine that emulates.
  void require_gpu(const char* function) const;
  void run(const runtime::GivenCall& call);
  // As an earlier call with its plan, from which it differs in addresses alone; false: there is none.
  bool repeat(const runtime::GivenCall& call);
  void remember(const runtime::GivenCall& call);
  // A call that is about to be made, where options ask for it.
  void check(const runtime::ForwardCall& call, const AttentionOptions& opts) const;
  void apply_functions(const AttentionOptions& on_device, CallShape shape, bool in_f32,
                       const reference::ScoreRows& rows);
  void merge(const runtime::MergeTurn& turn, const Tensor& out, const MergeOptions& opts);
  runtime::TuningRecordsOptions options_of_records() const;
  runtime::AutotunerOptions options_of_autotuner();
  runtime::AutotunerOptionsOf<runtime::BackwardPass> options_of_backward_autotuner();
  std::vector<std::pair<std::string, std::string>> tuning_environment();
  // The variant of gradients that a record chose for such calls on the device of a GPU; under on_first_use it is
  // measured first.
  std::optional<BackwardVariant> recorded_variant(const runtime::BackwardCall& call, Stream stream);
  // Those of every bucket, each once.
  std::vector<BackwardVariant> recorded_variants(const BackwardProblem& problem, int device);
  // Has what makes the launches of a call for gradients used, one after the other; nothing where there is nothing to
  // do. Their memory lives as long as this.
  using UseLaunch = std::function<void(const runtime::Backend::MakePlainLaunch& make)>;
  void for_each_launch(runtime::BackwardCall& call, const UseLaunch& use);

  const EngineOptions options;
  const generator::Templates own_templates;  // empty: those inside the library
  const generator::Templates& templates;
  const runtime::Logger log;
  // Finding the compiler and describing the engine change nothing that a caller can see.
  mutable runtime::Nvrtc nvrtc;
  const runtime::CacheLayers cache;  // none under Policy::off
  runtime::KernelStore store;
  runtime::TuningRecords records;
  runtime::Autotuner autotuner;
  runtime::TuningRecordsOf<runtime::BackwardPass> backward_records;
  runtime::AutotunerOf<runtime::BackwardPass> backward_autotuner;
  runtime::PlainKernels plain_kernels;
  runtime::Kernels kernels;
  runtime::BackwardChoices backward_choices;
  runtime::GpuBackend gpus;
  const std::unique_ptr<runtime::EmulatedBackend> emulated;  // null: kernels run on the GPUs
  runtime::Backend& backend;                                 // the one that runs them
};

}  // namespace flashjit
