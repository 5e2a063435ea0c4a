// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/kernels.h"

#include <algorithm>

#include "generator/family.h"
#include "generator/variant_space.h"
#include "runtime/call/operation.h"
#include "runtime/cuda/relaxed_capture.h"
#include "runtime/cuda/stream_scratch.h"
#include "runtime/cuda/tile_counters.h"
#include "runtime/cuda/zeroed_memory.h"
#include "runtime/support/parallel.h"

namespace flashjit::runtime {
namespace {

Need need_of(const Problem& problem, const Variant& variant, const Device& device) {
  return {LaunchKey(device.info.ordinal, problem, variant), {variant, variant}};
}

Need need_without_tensor_maps(const Problem& problem, const Device& device) {
  const Variant variant = generator::default_without_tma(problem, require_architecture(device));
  return {LaunchKey(device.info.ordinal, problem, WithoutTensorMaps{}), {variant, variant}};
}

// Each once.
std::vector<Variant> variants_of(const std::vector<Need>& needs) {
  std::vector<Variant> variants;
  for (const Need& need : needs) {
    const bool is_new = std::find(variants.begin(), variants.end(), need.choice.variant) == variants.end();
    if (is_new) variants.push_back(need.choice.variant);
  }
  return variants;
}

// What is kept for calls is freed with the engine, which does not wait for work in flight.
StreamScratch::Allocator scratch_allocator(const Driver& driver, const Device& device) {
  return {
      .allocate = [&](std::size_t bytes, Stream stream) { return allocate_memory(driver, device, bytes, stream); },
      .free = [&](void* memory, Stream stream) { free_memory(driver, device, memory, stream); },
      .release =
          [&](void* memory) {
            const RelaxedCapture relaxed(driver);
            if (driver.cuCtxPushCurrent(device.primary) != CUDA_SUCCESS) return;
            driver.cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
            CUcontext popped = nullptr;
            driver.cuCtxPopCurrent(&popped);
          },
  };
}

}  // namespace

// The functions of what stands beside attention, as a launch record has them.
struct Kernels::Beside {
  CUfunction functions[generator::kTurns] = {};
};

struct Kernels::Made {
  const LaunchRecord* record = nullptr;
  bool from_memory = false;
};

// What preparing tells of kernels: each once, however many buckets take it.
class Kernels::Listing {
 public:
  void add(const Made& made, bool tuned) {
    const auto [at, is_new] = places_.try_emplace(made.record, infos.size());
    if (is_new) {
      infos.push_back(made.record->info);
      if (made.from_memory) infos.back().origin = KernelInfo::Origin::memory;
    }
    infos[at->second].tuned |= tuned;
  }

  std::vector<KernelInfo> infos;

 private:
  std::map<const LaunchRecord*, std::size_t> places_;  // in infos
};

// The counters of one device, and where they lie.
struct Kernels::DeviceCounters {
  DeviceCounters(const Driver& driver, const Device& device)
      : memory(driver, device), counters([this](std::size_t count) {
          return static_cast<std::uint32_t*>(memory.allocate(count * sizeof(std::uint32_t)));
        }) {}

  ZeroedMemory memory;
  TileCounters counters;
};

Kernels::Kernels(const generator::Templates& templates, KernelStore& store, Autotuner& autotuner, const Logger& log,
                 ProgressCallback progress)
    : templates_(templates), store_(store), autotuner_(autotuner), log_(log), progress_(std::move(progress)) {}

Kernels::~Kernels() = default;

KernelInfo Kernels::compile(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  const WantedKernel wanted({problem, variant, architecture}, templates_);
  ProgressReporter progress(progress_, 1);
  const KernelInfo info = wanted.info(progress.around(wanted.name(), [&] { return store_.get(wanted.request); }));
  for (const generator::PlainKernel& kernel : kernels_beside(problem, {variant}, architecture, templates_))
    store_.get(KernelRequest(kernel.source, architecture.name, {}));
  return info;
}

KernelFacts Kernels::compile(const generator::PlainKernel& kernel, const Architecture& architecture) {
  const KernelRequest request(kernel.source, architecture.name, {});
  ProgressReporter progress(progress_, 1);
  return facts_of(kernel, architecture, progress.around(kernel.source.name, [&] { return store_.get(request); }));
}

const LaunchRecord& Kernels::prepare(const Problem& problem, const Variant& variant, const Device& device) {
  return prepare(problem, need_of(problem, variant, device), device);
}

const LaunchRecord& Kernels::prepare(const Problem& problem, const CallShape& shape, Stream stream,
                                     const Device& device) {
  require_architecture(device);
  const LaunchKey key(device.info.ordinal, problem, shape_bucket(shape, device.info.sm_count));
  const auto settle = [stream] {
    const Driver& driver = Driver::load();
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  };
  return prepare(problem, {key, autotuner_.choose_for_call(problem, shape, tuning_device(device.info), settle)},
                 device);
}

const LaunchRecord& Kernels::prepare(const Problem& problem, WithoutTensorMaps, const Device& device) {
  return prepare(problem, need_without_tensor_maps(problem, device), device);
}

const LaunchRecord& Kernels::prepare(const Problem& problem, const Need& need, const Device& device) {
  ProgressReporter progress(progress_, 1);
  return table_.insert(need.key, *make(problem, need.choice, device, progress).record);
}

std::vector<KernelInfo> Kernels::prepare_all(const Problem& problem, const std::optional<Variant>& variant,
                                             const Device& device) {
  const std::vector<Need> needs =
      variant ? std::vector<Need>{need_of(problem, *variant, device)} : needs_of_calls(problem, device);
  const std::vector<Variant> variants = variants_of(needs);
  std::vector<Made> made(variants.size());
  ProgressReporter progress(progress_, static_cast<int>(variants.size()));
  parallel_for(variants.size(), [&](std::size_t i) { made[i] = try_to_make(problem, variants[i], device, progress); });
  Listing listing;
  for (const Need& need : needs) {
    const auto at = std::find(variants.begin(), variants.end(), need.choice.variant) - variants.begin();
    const Made ready = made[at].record ? made[at] : make(problem, need.choice, device, progress);
    table_.insert(need.key, *ready.record);
    listing.add(ready, need.choice.tuned && ready.record->spec.variant() == need.choice.variant);
  }
  const Architecture& architecture = require_architecture(device);
  for (const generator::PlainKernel& kernel : kernels_beside(problem, variants, architecture, templates_))
    load(KernelRequest(kernel.source, architecture.name, {}), kernel.threads, kernel.smem_bytes, device);
  return std::move(listing.infos);
}

void Kernels::adopt(const Problem& problem, const ShapeBucket& bucket, const Variant& variant, const Device& device) {
  const auto key_of = [&](const Problem& of) { return LaunchKey(device.info.ordinal, of, bucket); };
  std::vector<Problem> others = others_of_class(problem);
  std::erase_if(others, [&](const Problem& other) { return !table_.find(key_of(other)); });
  ProgressReporter progress(progress_, 1 + static_cast<int>(others.size()));
  table_.replace(key_of(problem), *make(problem, variant, device, progress).record);
  for (const Problem& other : others)
    if (const Made made = try_to_make(other, variant, device, progress); made.record)
      table_.replace(key_of(other), *made.record);
}

// That have had a kernel.
std::vector<Problem> Kernels::others_of_class(const Problem& problem) {
  const std::lock_guard lock(mutex_);
  std::vector<Problem> others;
  for (const auto& [key, record] : records_) {
    const Problem& other = record->spec.problem();
    const bool is_new = !(other == problem) && std::find(others.begin(), others.end(), other) == others.end();
    if (is_new && tuning_class(other) == tuning_class(problem)) others.push_back(other);
  }
  return others;
}

// Of every bucket, and of calls without tensor maps where they differ from others.
std::vector<Need> Kernels::needs_of_calls(const Problem& problem, const Device& device) {
  const Architecture& architecture = require_architecture(device);
  const TuningDevice where = tuning_device(device.info);
  std::vector<Need> needs;
  for (const ShapeBucket& bucket : shape_buckets())
    needs.push_back({LaunchKey(where.ordinal, problem, bucket), autotuner_.choose(problem, bucket, where)});
  if (generator::has_hopper_kernels(architecture) && !generator::needs_tma(problem, architecture))
    needs.push_back(need_without_tensor_maps(problem, device));
  return needs;
}

Kernels::Made Kernels::make(const Problem& problem, const Variant& variant, const Device& device,
                            ProgressReporter& progress) {
  const WantedKernel wanted({problem, variant, require_architecture(device)}, templates_);
  if (const LaunchRecord* ready = known(wanted, device)) return {ready, true};
  const Beside beside = load_beside(wanted.spec, device);
  return {progress.around(wanted.name(), [&] { return &record(wanted, store_.get(wanted.request), beside, device); }),
          false};
}

// What a record chose may be missing where the default is not: in a bundle of the defaults, without a compiler.
Kernels::Made Kernels::make(const Problem& problem, const Choice& choice, const Device& device,
                            ProgressReporter& progress) {
  if (!choice.tuned) return make(problem, choice.variant, device, progress);
  try {
    return make(problem, choice.variant, device, progress);
  } catch (const Error& error) {
    log_(LogLevel::warning, "{}: the variant of a tuning record cannot be had, the default is used: {}",
         to_string(problem), error.what());
    return make(problem, choice.default_variant, device, progress);
  }
}

Kernels::Made Kernels::try_to_make(const Problem& problem, const Variant& variant, const Device& device,
                                   ProgressReporter& progress) {
  try {
    return make(problem, variant, device, progress);
  } catch (const Error&) {
    return {};
  }
}

CUfunction Kernels::function_of(const generator::PlainKernel& kernel, const Device& device) {
  const std::pair key(&kernel, device.info.ordinal);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = functions_.find(key); it != functions_.end()) return it->second;
  }
  const KernelRequest request(kernel.source, require_architecture(device).name, {});
  const CUfunction function = load(request, kernel.threads, kernel.smem_bytes, device);
  const std::lock_guard lock(mutex_);
  return functions_.try_emplace(key, function).first->second;
}

std::vector<KernelFacts> Kernels::prepare_all(const std::vector<const generator::PlainKernel*>& kernels,
                                              const Device& device) {
  const Architecture& architecture = require_architecture(device);
  std::vector<KernelFacts> facts(kernels.size());
  ProgressReporter progress(progress_, static_cast<int>(kernels.size()));
  parallel_for(kernels.size(), [&](std::size_t i) {
    const KernelRequest request(kernels[i]->source, architecture.name, {});
    facts[i] = progress.around(kernels[i]->source.name, [&] {
      const KernelStore::Result made = store_.get(request);
      function_of(*kernels[i], device);
      return facts_of(*kernels[i], architecture, made);
    });
  });
  return facts;
}

CUfunction Kernels::load(const KernelRequest& request, int threads, int smem_bytes, const Device& device) {
  const KernelStore::Result made = store_.get(request);
  const std::lock_guard lock(mutex_);
  const Driver& driver = Driver::load();
  const RelaxedCapture relaxed(driver);
  const ContextScope scope(driver, device.info.ordinal);
  return module(request, made.image).prepare(device, request.source().name, threads, smem_bytes).function;
}

Kernels::Beside Kernels::load_beside(const generator::KernelSpec& spec, const Device& device) {
  Beside beside;
  for (const auto& [turn, kernel] : generator::render_beside(spec, templates_))
    beside.functions[static_cast<std::size_t>(turn)] =
        load(KernelRequest(kernel.source, spec.architecture().name, {}), kernel.threads, kernel.smem_bytes, device);
  return beside;
}

const LaunchRecord* Kernels::known(const WantedKernel& wanted, const Device& device) {
  const std::lock_guard lock(mutex_);
  const auto it = records_.find({wanted.request.key().inputs, device.info.ordinal});
  return it == records_.end() ? nullptr : it->second.get();
}

const LaunchRecord& Kernels::record(const WantedKernel& wanted, const KernelStore::Result& made, const Beside& beside,
                                    const Device& device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<LaunchRecord>& slot = records_[{wanted.request.key().inputs, device.info.ordinal}];
  if (slot) return *slot;
  const Driver& driver = Driver::load();
  const RelaxedCapture relaxed(driver);
  const ContextScope scope(driver, device.info.ordinal);
  auto ready = std::make_unique<LaunchRecord>(wanted.spec);
  const generator::Plan& plan = wanted.spec.plan();
  const Module::Ready loaded =
      module(wanted.request, made.image).prepare(device, wanted.name(), plan.threads, plan.smem_bytes);
  std::copy(std::begin(beside.functions), std::end(beside.functions), ready->functions);
  ready->function(generator::Turn::attention) = loaded.function;
  ready->info = wanted.info(made);
  ready->limits = {loaded.blocks_per_sm * device.info.sm_count, device.info.sm_count};
  ready->scratch = &scratch(device);
  if (draws_tiles(wanted.spec.variant())) ready->tile_counters = &tile_counters(device);
  slot = std::move(ready);
  return *slot;
}

TileCounters& Kernels::tile_counters(const Device& device) {
  std::unique_ptr<DeviceCounters>& slot = counters_[device.info.ordinal];
  if (!slot) slot = std::make_unique<DeviceCounters>(Driver::load(), device);
  return slot->counters;
}

StreamScratch& Kernels::scratch(const Device& device) {
  std::unique_ptr<StreamScratch>& slot = scratch_[device.info.ordinal];
  if (!slot) slot = std::make_unique<StreamScratch>(scratch_allocator(Driver::load(), device));
  return *slot;
}

Module& Kernels::module(const KernelRequest& request, KernelStore::Shared image) {
  std::unique_ptr<Module>& slot = modules_[request.key().inputs];
  if (slot) return *slot;
  const Driver& driver = Driver::load();
  Module::Failure failure;
  slot = Module::open(driver, image->bytes, request.source().entry, failure);
  if (!slot && image->origin != KernelInfo::Origin::compiled && store_.may_compile()) {
    log_(LogLevel::warning, "{}: the driver refused the cached cubin ({}); compiling it anew", request.source().name,
         driver.describe(failure.result));
    image = store_.replace(request);
    slot = Module::open(driver, image->bytes, request.source().entry, failure);
  }
  if (!slot) driver.check(failure.result, failure.function);
  return *slot;
}

}  // namespace flashjit::runtime
