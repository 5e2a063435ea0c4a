// SPDX-License-Identifier: Apache-2.0
#include "flashjit/engine.h"

#include "flashjit/batch_plan.h"
#include "flashjit/version.h"
#include "generator/plan.h"
#include "generator/variant_space.h"
#include "runtime/api/engine_impl.h"
#include "runtime/call/ragged.h"
#include "runtime/call/validate.h"
#include "runtime/kernels/template_directory.h"

namespace flashjit {
namespace {

runtime::CacheLayers cache_layers_of(const EngineOptions& options) {
  return options.policy == Policy::off ? runtime::CacheLayers{} : runtime::make_cache_layers(options);
}

generator::Templates own_templates_of(const EngineOptions& options) {
  return options.template_directory.empty() ? generator::Templates{}
                                            : runtime::read_templates(options.template_directory);
}

void describe_nvrtc(runtime::Nvrtc& nvrtc, SystemInfo& info) {
  try {
    info.nvrtc_version = nvrtc.version();
  } catch (const Error& error) {
    info.nvrtc_problem = error.what();
  }
  info.nvrtc_path = nvrtc.path();
  info.nvrtc_refused = nvrtc.refused();
}

// The option is what the caller knows.
const Architecture& emulated_architecture(const std::string& name) try {
  return find_architecture(name);
} catch (const Error& error) {
  const std::string message = error.what();
  throw Error(error.code(), "emulate" + message.substr(message.find(':')));
}

std::unique_ptr<runtime::EmulatedBackend> emulated_backend_of(const EngineOptions& options,
                                                              const generator::Templates& templates,
                                                              runtime::KernelStore& store) {
  if (options.emulate.empty()) return nullptr;
  return std::make_unique<runtime::EmulatedBackend>(emulated_architecture(options.emulate), templates, store,
                                                    options.progress, options.emulation);
}

}  // namespace

Engine::Impl::Impl(EngineOptions given)
    : options(std::move(given)),
      own_templates(own_templates_of(options)),
      templates(own_templates.files().empty() ? generator::embedded_templates() : own_templates),
      log(options.log),
      nvrtc({options.nvrtc_path, options.nvrtc_directories}, log),
      cache(cache_layers_of(options)),
      store({options.policy, cache.user, cache.all, options.compile_wait}, nvrtc, log),
      records(options_of_records(), log),
      autotuner(options_of_autotuner(), records, store.tally(), log),
      backward_records(options_of_records(), log),
      backward_autotuner(options_of_backward_autotuner(), backward_records, store.tally(), log),
      plain_kernels(templates),
      kernels(templates, store, autotuner, log, options.progress),
      backward_choices(backward_autotuner, kernels, plain_kernels, log),
      gpus(kernels),
      emulated(emulated_backend_of(options, templates, store)),
      backend(emulated ? static_cast<runtime::Backend&>(*emulated) : gpus) {}

void Engine::Impl::check(const runtime::ForwardCall& call, const AttentionOptions& opts) const {
  if (!options.check_pages || !call.problem.ragged || call.nothing_to_do()) return;
  backend.look_at(call.operands, opts.stream, [&](const runtime::ReadInts& read) { check_sequences(call, read); });
}

void Engine::Impl::run(const runtime::GivenCall& given) {
  const auto& [q, k, v, out, opts] = given;
  if (runtime::CallWithBatch::is_needed(q, k, v, opts)) {
    const runtime::CallWithBatch with(q, k, v, out, opts);
    return run({with.q, with.k, with.v, with.out, with.opts});
  }
  runtime::ForwardCall call = runtime::validate_inputs(q, k, v, opts);
  runtime::validate_out(call, out);
  check(call, opts);
  backend.run(call, opts);
}

// Not where each call is to be looked at anew.
bool Engine::Impl::repeat(const runtime::GivenCall& call) {
  const BatchPlan* const plan = call.opts.plan;
  return plan && plan->remembered_ && !options.check_pages && backend.repeat(*plan->remembered_, call);
}

void Engine::Impl::remember(const runtime::GivenCall& call) {
  const BatchPlan* const plan = call.opts.plan;
  if (plan && plan->remembered_ && !options.check_pages) backend.remember(*plan->remembered_, call);
}

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Engine::~Engine() = default;

bool Engine::emulates() const noexcept { return impl_->emulated != nullptr; }

DeviceTensor Engine::attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts) {
  if (runtime::CallWithBatch::is_needed(q, k, v, opts)) {
    const runtime::CallWithBatch with(q, k, v, {}, opts);
    const runtime::ForwardCall call = runtime::validate_inputs(with.q, with.k, with.v, with.opts);
    const Dims with_batch = call.out_shape();
    const Dims shape = runtime::lacks_batch(q, opts.cu_seqlens_q) ? runtime::without_batch(with_batch) : with_batch;
    const int device = impl_->backend.output_device(call.operands, opts.stream);
    DeviceTensor out = DeviceTensor::allocate(generator::out_dtype(call.problem), shape, opts.stream, device);
    attention(q, k, v, out, opts);
    return out;
  }
  runtime::ForwardCall call = runtime::validate_inputs(q, k, v, opts);
  const int device = impl_->backend.output_device(call.operands, opts.stream);
  DeviceTensor out = DeviceTensor::allocate(generator::out_dtype(call.problem), call.out_shape(), opts.stream, device);
  runtime::validate_out(call, out);
  impl_->check(call, opts);
  impl_->backend.run(call, opts);
  return out;
}

void Engine::attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                       const AttentionOptions& opts) {
  const runtime::GivenCall call{q, k, v, out, opts};
  if (impl_->repeat(call)) return;
  impl_->run(call);
  impl_->remember(call);
}

void Engine::block_mask(const AttentionOptions& opts, const CallShape& shape, const Tensor& into) {
  const runtime::ForwardCall call = runtime::validate_block_mask(opts, shape, into);
  impl_->backend.run(call.operands, opts.stream, [&](const Architecture& architecture) {
    return runtime::make_block_mask_launch(call, architecture, impl_->plain_kernels);
  });
}

DeviceTensor Engine::block_mask(const AttentionOptions& opts, const CallShape& shape) {
  DeviceTensor mask =
      DeviceTensor::allocate(DType::i32, block_mask_dims(shape), opts.stream, emulates() ? kHostMemory : -1);
  block_mask(opts, shape, mask);
  return mask;
}

emulator::Report Engine::emulate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                 const AttentionOptions& opts, const EmulationOptions& options) {
  if (!impl_->emulated) {
    throw Error(ErrorCode::unsupported, "emulate: needs an engine whose options name an architecture to emulate");
  }
  if (runtime::CallWithBatch::is_needed(q, k, v, opts)) {
    const runtime::CallWithBatch with(q, k, v, out, opts);
    return emulate(with.q, with.k, with.v, with.out, with.opts, options);
  }
  runtime::ForwardCall call = runtime::validate_inputs(q, k, v, opts);
  runtime::validate_out(call, out);
  impl_->check(call, opts);
  return impl_->emulated->emulate(call, opts, options);
}

std::vector<KernelInfo> Engine::prepare(const Problem& problem, int device, const std::optional<Variant>& variant) {
  return impl_->backend.prepare(problem, device, variant);
}

KernelInfo Engine::prepare(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                           const AttentionOptions& opts) {
  if (runtime::CallWithBatch::is_needed(q, k, v, opts)) {
    const runtime::CallWithBatch with(q, k, v, out, opts);
    return prepare(with.q, with.k, with.v, with.out, with.opts);
  }
  runtime::ForwardCall call = runtime::validate_inputs(q, k, v, opts);
  runtime::validate_out(call, out);
  return impl_->backend.prepare(call, opts);
}

std::vector<Variant> Engine::variants(const Problem& problem, std::string_view architecture) const {
  validate(problem);
  return generator::legal_variants(problem, find_architecture(architecture));
}

Variant Engine::default_variant(const Problem& problem, std::string_view architecture,
                                const ShapeBucket& bucket) const {
  validate(problem);
  return generator::default_variant(problem, find_architecture(architecture), bucket);
}

Variant Engine::default_without_tma(const Problem& problem, std::string_view architecture) const {
  validate(problem);
  return generator::default_without_tma(problem, find_architecture(architecture));
}

std::vector<Variant> Engine::default_variants(const Problem& problem, std::string_view architecture) const {
  validate(problem);
  return generator::default_variants(problem, find_architecture(architecture));
}

std::vector<VariantExplanation> Engine::explain_variants(const Problem& problem, std::string_view architecture) const {
  validate(problem);
  return generator::explain_variants(problem, find_architecture(architecture));
}

std::string Engine::render(const Problem& problem, const Variant& variant, std::string_view architecture) const {
  return generator::render_forward({problem, variant, find_architecture(architecture)}, impl_->templates).text();
}

KernelInfo Engine::compile(const Problem& problem, const Variant& variant, std::string_view architecture) {
  return impl_->kernels.compile(problem, variant, find_architecture(architecture));
}

std::string Engine::bundle() const { return impl_->store.bundle(); }

SystemInfo Engine::system() const {
  SystemInfo info;
  info.version = version();
  info.cache = runtime::describe(impl_->cache);
  info.cache_max_bytes = impl_->options.cache_max_bytes;
  info.policy = impl_->options.policy;
  info.tuning = impl_->options.tuning;
  describe_nvrtc(impl_->nvrtc, info);
  impl_->backend.describe(info);
  return info;
}

Counters Engine::counters() const {
  Counters counters = impl_->store.counters();
  counters.quarantined += impl_->records.damaged() + impl_->backward_records.damaged();
  return counters;
}

}  // namespace flashjit
