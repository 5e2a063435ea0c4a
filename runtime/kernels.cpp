// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels.h"

#include <algorithm>

#include "generator/variant_space.h"
#include "runtime/parallel.h"
#include "runtime/relaxed_capture.h"
#include "runtime/tile_counters.h"
#include "runtime/zeroed_memory.h"

namespace flashjit::runtime {
namespace {

bool draws_tiles(const Variant& variant) {
  const auto* hopper = std::get_if<HopperVariant>(&variant);
  return hopper && hopper->scheduler == Scheduler::dynamic;
}

}  // namespace

// The counters of one device, and where they lie.
struct Kernels::DeviceCounters {
  DeviceCounters(const Driver& driver, const Device& device)
      : memory(driver, device), counters([this](std::size_t count) {
          return static_cast<std::uint32_t*>(memory.allocate(count * sizeof(std::uint32_t)));
        }) {}

  ZeroedMemory memory;
  TileCounters counters;
};

Kernels::Kernels(const generator::Templates& templates, KernelStore& store, const Logger& log,
                 ProgressCallback progress)
    : templates_(templates), store_(store), log_(log), progress_(std::move(progress)) {}

Kernels::~Kernels() = default;

KernelInfo Kernels::compile(const Problem& problem, const Variant& variant, const Architecture& architecture) {
  const WantedKernel wanted = want_kernel(problem, variant, architecture, templates_);
  ProgressReporter progress(progress_, 1);
  return wanted.info(progress.around(wanted.name(), [&] { return store_.get(wanted.request); }));
}

const LaunchRecord& Kernels::prepare(const Problem& problem, LengthRange range, const Variant* variant,
                                     const Device& device) {
  const Architecture& architecture = require_architecture(device);
  const Variant chosen = variant ? *variant : generator::default_variant(problem, architecture, range);
  const WantedKernel wanted = want_kernel(problem, chosen, architecture, templates_);
  const LaunchRecord* ready = known(wanted, device);
  if (!ready) {
    ProgressReporter progress(progress_, 1);
    ready = progress.around(wanted.name(), [&] { return &record(wanted, store_.get(wanted.request), device); });
  }
  table_.insert(LaunchKey(device.info.ordinal, problem, range, variant), *ready);
  return *ready;
}

std::vector<KernelInfo> Kernels::prepare_all(const Problem& problem, const std::optional<Variant>& variant,
                                             const Device& device) {
  const Architecture& architecture = require_architecture(device);
  const std::vector<Variant> variants = variants_of_calls(problem, variant, architecture);
  std::vector<const LaunchRecord*> ready(variants.size());
  std::vector<KernelInfo> infos(variants.size());
  ProgressReporter progress(progress_, static_cast<int>(variants.size()));
  parallel_for(variants.size(), [&](std::size_t i) {
    const WantedKernel wanted = want_kernel(problem, variants[i], architecture, templates_);
    ready[i] = known(wanted, device);
    const bool from_memory = ready[i] != nullptr;
    if (!from_memory) {
      ready[i] = progress.around(wanted.name(), [&] { return &record(wanted, store_.get(wanted.request), device); });
    }
    infos[i] = ready[i]->info;
    if (from_memory) infos[i].origin = KernelInfo::Origin::memory;
  });
  for (const LengthRange range : kLengthRanges) {
    const Variant chosen = variant ? *variant : generator::default_variant(problem, architecture, range);
    const auto at = std::find(variants.begin(), variants.end(), chosen) - variants.begin();
    table_.insert(LaunchKey(device.info.ordinal, problem, range, variant ? &*variant : nullptr), *ready[at]);
  }
  return infos;
}

CUfunction Kernels::load(const KernelRequest& request, int threads, int smem_bytes, const Device& device) {
  const KernelStore::Result made = store_.get(request);
  const std::lock_guard lock(mutex_);
  const Driver& driver = Driver::load();
  const RelaxedCapture relaxed(driver);
  const ContextScope scope(driver, device.info.ordinal);
  return module(request, made.image).prepare(device, request.source.name, threads, smem_bytes).function;
}

const LaunchRecord* Kernels::known(const WantedKernel& wanted, const Device& device) {
  const std::lock_guard lock(mutex_);
  const auto it = records_.find({wanted.name(), device.info.ordinal});
  return it == records_.end() ? nullptr : it->second.get();
}

const LaunchRecord& Kernels::record(const WantedKernel& wanted, const KernelStore::Result& made, const Device& device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<LaunchRecord>& slot = records_[{wanted.name(), device.info.ordinal}];
  if (slot) return *slot;
  const Driver& driver = Driver::load();
  const RelaxedCapture relaxed(driver);
  const ContextScope scope(driver, device.info.ordinal);
  auto ready = std::make_unique<LaunchRecord>();
  const Module::Ready loaded =
      module(wanted.request, made.image).prepare(device, wanted.name(), wanted.plan.threads, wanted.plan.smem_bytes);
  ready->function = loaded.function;
  ready->variant = wanted.variant;
  ready->plan = wanted.plan;
  ready->info = wanted.info(made);
  ready->resident_blocks = loaded.blocks_per_sm * device.info.sm_count;
  if (draws_tiles(wanted.variant)) ready->tile_counters = &tile_counters(device);
  slot = std::move(ready);
  return *slot;
}

TileCounters& Kernels::tile_counters(const Device& device) {
  std::unique_ptr<DeviceCounters>& slot = counters_[device.info.ordinal];
  if (!slot) slot = std::make_unique<DeviceCounters>(Driver::load(), device);
  return slot->counters;
}

Module& Kernels::module(const KernelRequest& request, KernelStore::Shared image) {
  std::unique_ptr<Module>& slot = modules_[request.source.name];
  if (slot) return *slot;
  const Driver& driver = Driver::load();
  Module::Failure failure;
  slot = Module::open(driver, image->bytes, request.source.entry, failure);
  if (!slot && image->origin != KernelInfo::Origin::compiled && store_.may_compile()) {
    log_(LogLevel::warning, "{}: the driver refused the cached cubin ({}); compiling it anew", request.source.name,
         driver.describe(failure.result));
    image = store_.replace(request);
    slot = Module::open(driver, image->bytes, request.source.entry, failure);
  }
  if (!slot) driver.check(failure.result, failure.function);
  return *slot;
}

}  // namespace flashjit::runtime
