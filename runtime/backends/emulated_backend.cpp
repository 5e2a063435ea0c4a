// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/emulated_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/operation.h"
#include "runtime/call/splits.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/support/parallel.h"

namespace flashjit::runtime {
namespace {

// Of an H200, whose measurements the rules by work are from: a call gets the kernel that it would get there.
constexpr int kSmCount = 132;

void require_ordinal(int device) {
  if (device == -1 || device == kHostMemory) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("device: must be -1 for an engine that emulates, was {}", device));
}

void require_null(Stream stream) {
  if (!stream) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("stream: must be null for an engine that emulates, was {}", fmt::ptr(stream)));
}

emulator::Program parse(const std::string& kernel, const std::string& ptx) {
  try {
    return emulator::Program(ptx);
  } catch (const emulator::ParseError& error) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: the emulator cannot run it: {}", kernel, error.what()));
  }
}

void require_clean(const emulator::Report& report) {
  if (report.clean()) return;
  throw Error(ErrorCode::kernel_fault, to_string(report.findings.front()), to_string(report));
}

emulator::TensorElement element_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return emulator::TensorElement::f16;
    case DType::bf16:
      return emulator::TensorElement::bf16;
    case DType::e4m3:
    case DType::e5m2:
      return emulator::TensorElement::u8;
    default:
      break;
  }
  return emulator::TensorElement::f32;
}

emulator::TensorMapDescription description_of(const MapPlace& place) {
  const Tensor& tensor = *place.tensor;
  const TensorMapBox& box = place.box;
  const TensorMapShape shape = place.ended ? ended_tensor_map_shape(tensor) : tensor_map_shape(tensor);
  const int row_bytes = box.columns * static_cast<int>(size_of(tensor.dtype));
  emulator::TensorMapDescription map;
  map.element = element_of(tensor.dtype);
  map.rank = shape.rank;
  map.address = place.ended ? const_cast<void*>(ended_tensor_map_address(tensor)) : tensor.data;
  std::copy(std::begin(shape.sizes), std::end(shape.sizes), map.sizes.begin());
  std::copy(std::begin(shape.strides), std::end(shape.strides), map.byte_strides.begin());
  map.box = {static_cast<std::uint32_t>(box.columns), static_cast<std::uint32_t>(box.heads),
             static_cast<std::uint32_t>(box.rows), 1, 1};
  map.swizzle = row_bytes == 128  ? emulator::TensorSwizzle::bytes_128
                : row_bytes == 64 ? emulator::TensorSwizzle::bytes_64
                                  : emulator::TensorSwizzle::bytes_32;
  return map;
}

// Without tile counters.
emulator::Launch emulated(const Launch& launch, const EmulationOptions& options) {
  emulator::Launch copy;
  copy.grid.x = static_cast<unsigned>(launch.blocks);
  copy.block.x = static_cast<unsigned>(launch.threads);
  copy.cluster.x = static_cast<unsigned>(launch.cluster);
  copy.resident_clusters = std::max(1, options.resident_blocks / launch.cluster);
  copy.dynamic_shared_bytes = static_cast<std::size_t>(launch.shared_bytes);
  copy.seed = options.seed;
  copy.most_instructions = options.most_instructions;
  copy.parameters.assign(launch.arguments, launch.arguments + launch.argument_bytes);
  for (int i = 0; i < launch.map_count; ++i) {
    const emulator::TensorMap map = emulator::encode_tensor_map(description_of(launch.maps[i]));
    std::memcpy(copy.parameters.data() + launch.maps[i].offset, &map, sizeof(map));
  }
  return copy;
}

}  // namespace

struct EmulatedBackend::PlainProgram {
  std::string entry;
  emulator::Program program;
};

struct EmulatedBackend::Kernel {
  generator::KernelSpec spec;
  std::string entry;
  KernelInfo info;
  emulator::Program program;
  const PlainProgram* beside[generator::kTurns] = {};  // null where calls have no such launch

  // The first report with findings, or else the last one.
  emulator::Report run(const ForwardCall& call, const EmulationOptions& options) const {
    // With any contents, as on a GPU.
    constexpr std::byte kAny{0x5a};
    struct alignas(16) Unit {
      std::byte bytes[16];
    };
    const DeviceLimits limits{options.resident_blocks, kSmCount};
    std::vector<Unit> scratch((Operation::scratch_bytes(call, spec, limits) + sizeof(Unit) - 1) / sizeof(Unit));
    for (Unit& unit : scratch) std::fill(std::begin(unit.bytes), std::end(unit.bytes), kAny);
    Operation operation(call, spec, limits, reinterpret_cast<std::byte*>(scratch.data()));
    emulator::Memory memory = memory_of(call.operands);
    if (!scratch.empty()) memory.add("scratch", scratch.data(), scratch.size() * sizeof(Unit));
    emulator::Report report;
    for (Launch& launch : operation) {
      const PlainProgram* const plain = beside[static_cast<std::size_t>(launch.turn)];
      report =
          plain ? plain->program.run(plain->entry, emulated(launch, options), memory) : run(launch, memory, options);
      if (!report.clean()) break;
    }
    return report;
  }

 private:
  emulator::Report run(Launch& launch, emulator::Memory memory, const EmulationOptions& options) const {
    std::uint32_t tile_counter = 0;
    if (launch.tile_counter_offset != Launch::kNowhere) {
      launch.write_argument(launch.tile_counter_offset, &tile_counter);
      memory.add("tile_counter", &tile_counter, sizeof(tile_counter));
    }
    emulator::Report report = program.run(entry, emulated(launch, options), memory);
    if (report.clean() && tile_counter != 0) {
      throw Error(ErrorCode::kernel_fault,
                  fmt::format("{}: must leave its tile counter 0, left {}", info.name, tile_counter));
    }
    return report;
  }
};

emulator::Memory memory_of(const Operands& operands) {
  struct Part {
    std::string name;
    MemoryRange range;
    bool writable;
  };
  std::vector<Part> parts;
  for (const Operand& operand : operands)
    if (!operand.range.empty()) parts.push_back({operand.name, operand.range, operand.written});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.range.begin < b.range.begin; });
  std::vector<Part> buffers;
  for (const Part& part : parts) {
    if (buffers.empty() || buffers.back().range.end <= part.range.begin) {
      buffers.push_back(part);
      continue;
    }
    Part& shared = buffers.back();
    shared.name += "+" + part.name;
    shared.range.end = std::max(shared.range.end, part.range.end);
    shared.writable |= part.writable;
  }
  emulator::Memory memory;
  for (const Part& buffer : buffers) {
    void* const data = reinterpret_cast<void*>(buffer.range.begin);
    const std::size_t bytes = buffer.range.end - buffer.range.begin;
    if (buffer.writable)
      memory.add(buffer.name, data, bytes);
    else
      memory.add_read_only(buffer.name, data, bytes);
  }
  return memory;
}

EmulatedBackend::EmulatedBackend(const Architecture& architecture, const generator::Templates& templates,
                                 KernelStore& store, ProgressCallback progress, const EmulationOptions& options)
    : architecture_(architecture),
      templates_(templates),
      store_(store),
      progress_(std::move(progress)),
      options_(options) {}

EmulatedBackend::~EmulatedBackend() = default;

void EmulatedBackend::describe(SystemInfo& info) const {
  info.driver_problem = "not looked for, as the engine emulates";
  DeviceInfo& device = info.devices.emplace_back();
  device.ordinal = kHostMemory;
  device.name = fmt::format("emulated {}", architecture_.name);
  device.architecture = architecture_.name;
  device.major = architecture_.major;
  device.minor = architecture_.minor;
  device.sm_count = kSmCount;
}

std::vector<KernelInfo> EmulatedBackend::prepare(const Problem& problem, int device,
                                                 const std::optional<Variant>& variant) {
  require_ordinal(device);
  const std::vector<Variant> variants = variants_of_calls(problem, variant, architecture_);
  std::vector<KernelInfo> infos(variants.size());
  ProgressReporter progress(progress_, static_cast<int>(variants.size()));
  parallel_for(variants.size(), [&](std::size_t i) {
    const WantedKernel wanted = want(problem, variants[i]);
    if (const Kernel* kernel = known(wanted)) {
      infos[i] = kernel->info;
      infos[i].origin = KernelInfo::Origin::memory;
    } else {
      infos[i] = progress.around(wanted.name(), [&] { return make(wanted).info; });
    }
  });
  for (const generator::PlainKernel& kernel : kernels_beside(problem, variants, architecture_, templates_))
    store_.get(KernelRequest(kernel.source, ptx_target(architecture_.name), {}));
  return infos;
}

KernelInfo EmulatedBackend::prepare(const ForwardCall& call, const AttentionOptions& opts) {
  require_null(opts.stream);
  if (call.nothing_to_do()) return {};
  return kernel_of(call).info;
}

std::vector<KernelFacts> EmulatedBackend::prepare(const std::vector<const generator::PlainKernel*>& kernels,
                                                  int device) {
  require_ordinal(device);
  std::vector<KernelFacts> facts(kernels.size());
  ProgressReporter progress(progress_, static_cast<int>(kernels.size()));
  parallel_for(kernels.size(), [&](std::size_t i) {
    const generator::PlainKernel& kernel = *kernels[i];
    const KernelRequest request(kernel.source, ptx_target(architecture_.name), {});
    facts[i] = progress.around(kernel.source.name, [&] {
      const KernelStore::Result made = store_.get(request);
      beside(kernel);
      return facts_of(kernel, architecture_, made);
    });
  });
  return facts;
}

const Architecture& EmulatedBackend::architecture(int device) const {
  require_ordinal(device);
  return architecture_;
}

int EmulatedBackend::output_device(const Operands&, Stream stream) const {
  require_null(stream);
  return kHostMemory;
}

int EmulatedBackend::sm_count(const Operands&, Stream) const { return kSmCount; }

const Architecture& EmulatedBackend::architecture(const Operands&, Stream) const { return architecture_; }

void EmulatedBackend::run(const ForwardCall& call, const AttentionOptions& opts) {
  require_clean(emulate(call, opts, options_));
}

void EmulatedBackend::run(const Operands& operands, Stream stream, const MakePlainLaunch& make) {
  require_clean(emulate(operands, stream, make, options_));
}

void EmulatedBackend::prepare(const Operands&, Stream stream, const MakePlainLaunch& make) {
  require_null(stream);
  const PlainLaunch made = make(architecture_);
  if (made.launch.blocks > 0) beside(made.kernel);
}

void EmulatedBackend::look_at(const Operands&, Stream stream, const Look& look) {
  require_null(stream);
  look([](const MemoryRange& range) {
    return std::vector<std::int32_t>(reinterpret_cast<const std::int32_t*>(range.begin),
                                     reinterpret_cast<const std::int32_t*>(range.end));
  });
}

void EmulatedBackend::plan(const ForwardCall& call, const Tensor& memory, const AttentionOptions& opts) {
  require_null(opts.stream);
  if (call.nothing_to_do()) return;
  if (!call.problem.ragged) {
    std::ranges::fill(counters_of_plan(call, *call.variant, memory, kSmCount), std::byte{0});
    return;
  }
  const PlainProgram& planner = beside(generator::render_batch_plan(architecture_, templates_));
  require_clean(planner.program.run(planner.entry, emulated(make_batch_plan_launch(call, memory, kSmCount), options_),
                                    memory_of(call.operands)));
}

emulator::Report EmulatedBackend::emulate(const ForwardCall& call, const AttentionOptions& opts,
                                          const EmulationOptions& options) {
  require_null(opts.stream);
  if (call.nothing_to_do()) return {};
  return kernel_of(call).run(call, options);
}

emulator::Report EmulatedBackend::emulate(const Operands& operands, Stream stream, const MakePlainLaunch& make,
                                          const EmulationOptions& options) {
  require_null(stream);
  const PlainLaunch made = make(architecture_);
  if (made.launch.blocks == 0) return {};
  if (made.launch.shared_bytes > made.kernel.smem_bytes)  // GPUs are told how much before the first launch
    throw Error(ErrorCode::kernel_fault,
                fmt::format("{}: must have at most {} bytes of shared memory, was given {}", made.kernel.source.name,
                            made.kernel.smem_bytes, made.launch.shared_bytes));
  const PlainProgram& plain = beside(made.kernel);
  return plain.program.run(plain.entry, emulated(made.launch, options), memory_of(operands));
}

WantedKernel EmulatedBackend::want(const Problem& problem, const Variant& variant) const {
  return {{problem, variant, architecture_}, templates_, ptx_target(architecture_.name)};
}

const EmulatedBackend::Kernel* EmulatedBackend::known(const WantedKernel& wanted) {
  const std::lock_guard lock(mutex_);
  const auto it = kernels_.find(wanted.request.key().inputs);
  return it == kernels_.end() ? nullptr : it->second.get();
}

// The first to finish is kept, as of kernels.
const EmulatedBackend::PlainProgram& EmulatedBackend::beside(const generator::PlainKernel& kernel) {
  const generator::Source& source = kernel.source;
  const KernelRequest request(source, ptx_target(architecture_.name), {});
  const cache::Digest& inputs = request.key().inputs;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = beside_.find(inputs); it != beside_.end()) return *it->second;
  }
  const KernelStore::Result image = store_.get(request);
  auto made = std::make_unique<const PlainProgram>(PlainProgram{source.entry, parse(source.name, image.image->bytes)});
  const std::lock_guard lock(mutex_);
  return *beside_.try_emplace(inputs, std::move(made)).first->second;
}

// Threads that make the same kernel at once compile it once, and each parses it: the first to finish is kept.
const EmulatedBackend::Kernel& EmulatedBackend::make(const WantedKernel& wanted) {
  const KernelStore::Result made = store_.get(wanted.request);
  auto kernel = std::unique_ptr<Kernel>(new Kernel{wanted.spec, wanted.request.source().entry, wanted.info(made),
                                                   parse(wanted.name(), made.image->bytes)});
  for (const auto& [turn, plain] : generator::render_beside(wanted.spec, templates_))
    kernel->beside[static_cast<std::size_t>(turn)] = &beside(plain);
  const std::lock_guard lock(mutex_);
  return *kernels_.try_emplace(wanted.request.key().inputs, std::move(kernel)).first->second;
}

// By the default rules alone: records are about times on real devices.
Variant EmulatedBackend::variant_of(const ForwardCall& call) const {
  if (call.fixed_split > 0 && !call.variant)
    return generator::invariant_variant(call.problem, architecture_, shape_bucket(tuning_shape(call), kSmCount),
                                        has_tensor_maps(call));
  if (!has_tensor_maps(call) && takes_default_without_tma(call, architecture_))
    return generator::default_without_tma(call.problem, architecture_);
  if (call.variant) return *call.variant;
  return generator::default_variant(call.problem, architecture_, shape_bucket(tuning_shape(call), kSmCount));
}

const EmulatedBackend::Kernel& EmulatedBackend::kernel_of(const ForwardCall& call) {
  const WantedKernel wanted = want(call.problem, variant_of(call));
  if (const Kernel* kernel = known(wanted)) return *kernel;
  ProgressReporter progress(progress_, 1);
  return *progress.around(wanted.name(), [&] { return &make(wanted); });
}

}  // namespace flashjit::runtime
