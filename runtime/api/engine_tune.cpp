// SPDX-License-Identifier: Apache-2.0
// The engine's choice of variants by measurement.
#include <algorithm>

#include "cache/digest.h"
#include "flashjit/engine.h"
#include "flashjit/version.h"
#include "runtime/api/engine_impl.h"
#include "runtime/backends/gpu_backward_bench.h"
#include "runtime/backends/gpu_tuning_bench.h"
#include "runtime/cuda/device.h"

namespace flashjit {
namespace {

std::string digest_of(const generator::Templates& templates) {
  cache::Hasher hasher;
  for (const auto& [path, text] : templates.files()) hasher.add(path, text);
  return hasher.finish().hex();
}

// Empty when there is none.
std::string version_of(runtime::Nvrtc& nvrtc) try { return nvrtc.version(); } catch (const Error&) {
  return {};
}

const runtime::Device& resolve(int device) {
  return runtime::device(runtime::resolve_device(runtime::Driver::load(), device));
}

}  // namespace

// Records that are not to be written are kept in memory only.
runtime::TuningRecordsOptions Engine::Impl::options_of_records() const {
  return {options.policy == Policy::compile ? cache.user : nullptr, cache.all, runtime::builtin_records()};
}

runtime::AutotunerOptions Engine::Impl::options_of_autotuner() {
  const auto make_bench = [this](const Problem& problem, const CallShape& shape, int ordinal, int jobs) {
    return std::make_unique<runtime::GpuTuningBench>(store, templates, runtime::device(ordinal), problem, shape, jobs);
  };
  return {options.tuning, make_bench, [this] { return tuning_environment(); }};
}

runtime::AutotunerOptionsOf<runtime::BackwardPass> Engine::Impl::options_of_backward_autotuner() {
  const auto make_bench = [this](const BackwardProblem& problem, const CallShape& shape, int ordinal, int jobs) {
    return runtime::make_gpu_backward_bench(store, autotuner, log, templates, runtime::device(ordinal), problem, shape,
                                            jobs);
  };
  return {options.tuning, make_bench, [this] { return tuning_environment(); }};
}

std::vector<std::pair<std::string, std::string>> Engine::Impl::tuning_environment() {
  return {{"version", version()},
          {"kernels", digest_of(templates)},
          {"driver", runtime::Driver::installed_version()},
          {"nvrtc", version_of(nvrtc)}};
}

TuningRecord Engine::tune(const Problem& problem, const CallShape& shape, const TuneOptions& options, int device) {
  impl_->require_gpu("tune");
  const runtime::Device& target = resolve(device);
  runtime::require_architecture(target);
  TuningRecord record = impl_->autotuner.tune(problem, shape, options, runtime::tuning_device(target.info));
  if (options.adopt) impl_->kernels.adopt(problem, record.bucket, record.chosen, target);
  return record;
}

BackwardTuningRecord Engine::tune_backward(const BackwardProblem& problem, const CallShape& shape,
                                           const BackwardTuneOptions& options, int device) {
  impl_->require_gpu("tune_backward");
  const runtime::Device& target = resolve(device);
  runtime::require_architecture(target);
  BackwardTuningRecord record =
      impl_->backward_autotuner.tune(problem, shape, options, runtime::tuning_device(target.info));
  if (options.adopt) impl_->backward_choices.forget();
  return record;
}

std::optional<BackwardVariant> Engine::Impl::recorded_variant(const runtime::BackwardCall& call, Stream stream) {
  const bool is_empty = call.forward.batch == 0 || call.forward.num_heads_kv == 0;  // gradients of options are 0
  if (emulated || options.tuning == TuningPolicy::off || is_empty) return {};
  return backward_choices.find(call, stream);
}

std::vector<BackwardVariant> Engine::Impl::recorded_variants(const BackwardProblem& problem, int device) {
  std::vector<BackwardVariant> variants;
  if (emulated) return variants;
  const runtime::TuningDevice where = runtime::tuning_device(resolve(device).info);
  for (const ShapeBucket& bucket : shape_buckets()) {
    const runtime::ChoiceOf<BackwardVariant> choice = backward_autotuner.choose(problem, bucket, where);
    const bool is_new = std::find(variants.begin(), variants.end(), choice.variant) == variants.end();
    const bool is_legal =
        runtime::BackwardPass::why_illegal(problem, choice.variant, find_architecture(where.identity.architecture))
            .empty();
    if (choice.tuned && is_new && is_legal) variants.push_back(choice.variant);
  }
  return variants;
}

std::vector<BackwardVariant> Engine::recorded_backward_variants(const BackwardProblem& problem,
                                                                std::string_view architecture) const {
  validate(problem);
  const Architecture& target = find_architecture(architecture);
  if (impl_->options.tuning == TuningPolicy::off) return {};
  return impl_->backward_records.chosen(problem, target);
}

std::vector<BackwardTuningRecord> Engine::backward_tuning_records(int device) const {
  impl_->require_gpu("backward_tuning_records");
  std::vector<BackwardTuningRecord> records;
  for (const auto& record : impl_->backward_records.all(runtime::identify(resolve(device).info)))
    records.push_back(*record);
  return records;
}

void Engine::use_records(const std::vector<TuningRecord>& records,
                         const std::vector<BackwardTuningRecord>& backward_records, int device) {
  impl_->require_gpu("use_records");
  if (impl_->options.tuning == TuningPolicy::off && !(records.empty() && backward_records.empty()))
    throw Error(ErrorCode::unsupported, "use_records: the tuning policy must not be off for records, was");
  const DeviceIdentity identity = runtime::identify(resolve(device).info);
  impl_->records.use_only(identity, records);
  impl_->backward_records.use_only(identity, backward_records);
  impl_->backward_choices.forget();
}

std::vector<Variant> Engine::recorded_variants(const Problem& problem, std::string_view architecture) const {
  validate(problem);
  const Architecture& target = find_architecture(architecture);
  if (impl_->options.tuning == TuningPolicy::off) return {};
  return impl_->records.chosen(problem, target);
}

std::vector<TuningRecord> Engine::tuning_records(int device) const {
  impl_->require_gpu("tuning_records");
  std::vector<TuningRecord> records;
  for (const auto& record : impl_->records.all(runtime::identify(resolve(device).info))) records.push_back(*record);
  return records;
}

}  // namespace flashjit
