// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/gpu_tuning_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "cache/digest.h"
#include "runtime/call/validate.h"
#include "runtime/cuda/module.h"
#include "runtime/kernels/wanted_kernel.h"
#include "runtime/support/job_pool.h"

namespace flashjit::runtime {
namespace {

// Of a small call, so that each block of a persistent kernel has several tiles.
constexpr int kCheckBlocks = 4;
constexpr unsigned char kNanByte = 0xff;  // numbers of such bytes are NaN, in f16, bf16 and f32

CUdeviceptr device_pointer(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

std::string describe(const CallShape& shape) {
  return fmt::format("batch {}, {} queries, {} keys, {} heads on {}", shape.batch, shape.seqlen_q, shape.seqlen_kv,
                     shape.num_heads_q, shape.num_heads_kv);
}

// Empty when it passed.
std::string describe(const reference::Comparison& comparison, const char* what, const CallShape& shape) {
  if (comparison.passed) return {};
  return fmt::format("{} is off by {:.3g} where {:.3g} is allowed ({})", what, comparison.max_error, comparison.bound,
                     describe(shape));
}

}  // namespace

struct GpuTuningBench::Kernel {
  explicit Kernel(const generator::KernelSpec& spec) : record(spec) {}

  std::string name, entry;
  KernelStore::Shared image;
  std::unique_ptr<Module> module;
  std::vector<std::unique_ptr<Module>> beside;
  LaunchRecord record;
  std::optional<GpuOperation> timed;
  bool warm = false;  // the timed call has run
};

// The tensors of one call in the device's memory.
class GpuTuningBench::DeviceCall {
 public:
  DeviceCall(const Driver& driver, const TuningCall& inputs, bool with_lse, Stream stream, int device)
      : driver_(driver), shapes_(inputs.problem, inputs.shape), stream_(stream), options_(inputs.options) {
    const Problem& problem = inputs.problem;
    const auto allocate = [&](DType dtype, const Dims& dims) {
      return DeviceTensor::allocate(dtype, dims, stream, device);
    };
    q = allocate(q_dtype(problem), shapes_.q);
    k = allocate(kv_dtype(problem), shapes_.k);
    if (!problem.latent) v = allocate(kv_dtype(problem), shapes_.v);
    values = problem.latent ? first_columns(k.view(), problem.head_dim_v) : v.view();
    out = allocate(problem.dtype, shapes_.out);
    if (with_lse) options_.lse = (lse = allocate(DType::f32, shapes_.lse)).view();
    for (const OptionTensor& tensor : inputs.tensors)
      tensor.put_into(options_, tensors.emplace_back(allocate(tensor.memory.dtype(), tensor.memory.shape())).data());
    if (problem.block_mask)
      options_.block_mask = (block_mask = allocate(DType::i32, block_mask_dims(inputs.block_mask_shape()))).view();
    call = validate_inputs(q.view(), k.view(), values, options_);
    validate_out(call, out.view());
  }
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  // Each with the host's numbers, again and again until it is full. These must stay until the stream was synchronised.
  void fill(const HostTensor& q_host, const HostTensor& k_host, const HostTensor& v_host,
            const std::vector<OptionTensor>& tensors_host) const {
    fill(q, q_host);
    fill(k, k_host);
    if (v.data()) fill(v, v_host);
    for (std::size_t i = 0; i < tensors.size(); ++i) fill(tensors[i], tensors_host[i].memory);
  }

  // What a kernel forgets to write shows.
  void poison() const {
    for (const DeviceTensor* tensor : {&out, &lse}) {
      if (!tensor->data()) continue;
      driver_.check(driver_.cuMemsetD8Async(device_pointer(tensor->data()), kNanByte, tensor->size_bytes(), stream_),
                    "cuMemsetD8Async");
    }
  }

  const AttentionOptions& options() const noexcept { return options_; }

  DeviceTensor q, k, v, out, lse;
  Tensor values;                      // v, or where that has no memory of its own, columns of k
  std::vector<DeviceTensor> tensors;  // like those of the host
  DeviceTensor block_mask;            // of a problem that has one
  ForwardCall call;                   // points into the others

 private:
  void fill(const DeviceTensor& tensor, const HostTensor& host) const {
    const std::size_t block = host.element_count() * size_of(host.dtype());
    for (std::size_t begin = 0; begin < tensor.size_bytes(); begin += block) {
      driver_.check(driver_.cuMemcpyHtoDAsync(device_pointer(tensor.data()) + begin, host.data(),
                                              std::min(block, tensor.size_bytes() - begin), stream_),
                    "cuMemcpyHtoDAsync");
    }
  }

  const Driver& driver_;
  const TensorShapes shapes_;
  const Stream stream_;
  AttentionOptions options_;
};

GpuTuningBench::GpuTuningBench(KernelStore& store, const generator::Templates& templates, const Device& device,
                               const Problem& problem, const CallShape& shape, int jobs)
    : driver_(Driver::load()),
      device_(device),
      architecture_(require_architecture(device)),
      templates_(templates),
      store_(store),
      problem_(problem),
      jobs_(jobs > 0 ? jobs : compile_jobs_of_machine()),
      timed_case_(problem, shape),
      check_cases_(make_check_cases(problem)),
      stream_(driver_, device),
      counter_memory_(driver_, device),
      tile_counters_([this](std::size_t count) {
        return static_cast<std::uint32_t*>(counter_memory_.allocate(count * sizeof(std::uint32_t)));
      }),
      timed_call_(make_timed_call()),
      // Beside the compiler, which takes longer.
      expected_(std::async(std::launch::async, [this] { return expected(); })),
      timer_(driver_, device, stream_.get(), true) {
  timed_call_->fill(timed_case_.q.block(), timed_case_.k.block(), timed_case_.v.block(), timed_case_.tensors);
  for (const CheckCase& small : check_cases_) {
    check_calls_.push_back(std::make_unique<DeviceCall>(driver_, small, true, stream_.get(), device_.info.ordinal));
    check_calls_.back()->fill(small.q, small.k, small.v, small.tensors);
    if (problem.block_mask) make_block_mask(*check_calls_.back(), small);
  }
  if (problem.block_mask) make_block_mask(*timed_call_, timed_case_);
  stream_.synchronize();
}

// Its kernels may not be unloaded while one runs.
GpuTuningBench::~GpuTuningBench() { driver_.cuStreamSynchronize(stream_.get()); }

std::vector<Expected> GpuTuningBench::expected() const {
  std::vector<Expected> results;
  for (const CheckCase& small : check_cases_) results.push_back(small.expected());
  results.push_back(timed_case_.expected());
  return results;
}

std::unique_ptr<GpuTuningBench::DeviceCall> GpuTuningBench::make_timed_call() const try {
  return std::make_unique<DeviceCall>(driver_, timed_case_, false, stream_.get(), device_.info.ordinal);
} catch (const Error& error) {
  if (error.code() != ErrorCode::driver) throw;
  throw Error(ErrorCode::driver, fmt::format("shape: its tensors ({}) must fit into the free memory of {}, did not: {}",
                                             describe(timed_case_.shape), device_.info.name, error.what()));
}

// By the library's own kernel, of the predicates that the call has in memory.
void GpuTuningBench::make_block_mask(const DeviceCall& on_device, const TuningCall& inputs) {
  const Tensor into = on_device.block_mask.view();
  const ForwardCall call = validate_block_mask(on_device.options(), inputs.block_mask_shape(), into);
  PlainKernels plain_kernels(templates_);
  PlainLaunch made = make_block_mask_launch(call, architecture_, plain_kernels);
  const KernelRequest request(made.kernel.source, architecture_.name, {});
  if (!block_mask_module_) block_mask_module_ = open_module(*store_.get(request).image, request.source().entry);
  const Module::Ready ready =
      block_mask_module_->prepare(device_, request.source().name, made.kernel.threads, made.launch.shared_bytes);
  enqueue(driver_, made.launch, ready.function, stream_.get());
}

std::unique_ptr<Module> GpuTuningBench::open_module(const KernelImage& image, const std::string& entry) const {
  Module::Failure failure;
  std::unique_ptr<Module> module = Module::open(driver_, image.bytes, entry, failure);
  if (!module) driver_.check(failure.result, failure.function);
  return module;
}

std::vector<TuningBench::Compiled> GpuTuningBench::compile(const std::vector<Variant>& variants,
                                                           const std::function<bool()>& stop,
                                                           const std::function<void(int)>& done) {
  std::vector<Compiled> results(variants.size());
  std::vector<std::unique_ptr<Kernel>> kernels(variants.size());
  run_jobs(
      variants.size(), jobs_, [&](std::size_t i) { results[i] = compile_one(variants[i], kernels[i]); }, stop, done);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (!kernels[i]) continue;
    try {
      load(*kernels[i]);
      kernels_[variants[i]] = std::move(kernels[i]);
    } catch (const Error& error) {
      results[i] = {false, error.what(), 0, ""};
    }
  }
  return results;
}

TuningBench::Compiled GpuTuningBench::compile_one(const Variant& variant, std::unique_ptr<Kernel>& kernel) const try {
  const WantedKernel wanted({problem_, variant, architecture_}, templates_);
  auto made = std::make_unique<Kernel>(wanted.spec);
  made->name = wanted.name();
  made->entry = wanted.request.source().entry;
  made->image = store_.get(wanted.request).image;
  kernel = std::move(made);
  return {true, "", kernel->image->spill_bytes, cache::digest_of(kernel->image->bytes).hex()};
} catch (const std::exception& error) {
  return {false, error.what(), 0, ""};
}

// What one launch needs, and no table of the engine's: candidates are gone when the tuning is over.
void GpuTuningBench::load(Kernel& kernel) {
  kernel.module = open_module(*kernel.image, kernel.entry);
  LaunchRecord& record = kernel.record;
  const Module::Ready ready =
      kernel.module->prepare(device_, kernel.name, record.spec.plan().threads, record.spec.plan().smem_bytes);
  record.function(generator::Turn::attention) = ready.function;
  record.limits = {ready.blocks_per_sm * device_.info.sm_count, device_.info.sm_count};
  if (draws_tiles(record.spec.variant())) record.tile_counters = &tile_counters_;
  for (const auto& [turn, plain] : generator::render_beside(record.spec, templates_)) {
    const KernelRequest request(plain.source, architecture_.name, {});
    kernel.beside.push_back(open_module(*store_.get(request).image, request.source().entry));
    record.function(turn) = kernel.beside.back()->prepare(device_, plain.source.name, plain.threads, 0).function;
  }
  kernel.timed.emplace(driver_, timed_call_->call, record, stream_.get());
}

std::string GpuTuningBench::check(const Variant& variant) try {
  Kernel& kernel = *kernels_.at(variant);
  for (std::size_t i = 0; i < check_calls_.size(); ++i) {
    std::string why = check_small(kernel, i);
    if (!why.empty()) return why;
  }
  return check_timed(kernel);
} catch (const Error& error) {
  stream_.synchronize();
  return error.what();
}

// What the second launch writes: it finds what the first one left, such as the counter of its tiles.
std::string GpuTuningBench::check_small(const Kernel& kernel, std::size_t index) {
  const DeviceCall& small = *check_calls_[index];
  LaunchRecord record = kernel.record;
  record.limits.resident_blocks = std::min<std::int64_t>(record.limits.resident_blocks, kCheckBlocks);
  GpuOperation operation(driver_, small.call, record, stream_.get());
  for (int i = 0; i < 2; ++i) {
    small.poison();
    operation.enqueue(driver_);
  }
  const Expected& expected = expected_.get()[index];
  const CallShape& shape = check_cases_[index].shape;
  std::string why = describe(reference::compare(HostTensor::from_device(small.out), expected.exact, expected.low),
                             "the output", shape);
  if (!why.empty()) return why;
  return describe(reference::compare_lse(HostTensor::from_device(small.lse), expected.exact, expected.low), "the LSE",
                  shape);
}

std::string GpuTuningBench::check_timed(Kernel& kernel) {
  timed_call_->poison();
  kernel.timed->enqueue(driver_);
  kernel.warm = true;
  const Expected& expected = expected_.get().back();
  return describe(reference::compare(checked_rows(), expected.exact, expected.low), "the output", timed_case_.shape);
}

HostTensor GpuTuningBench::checked_rows() const {
  const CallShape& shape = timed_case_.shape;
  const std::int64_t count = timed_case_.checked_rows();
  HostTensor rows(problem_.dtype, {1, count, 1, problem_.head_dim_v});
  const std::size_t row_bytes = static_cast<std::size_t>(problem_.head_dim_v) * size_of(problem_.dtype);
  const auto* const end = static_cast<const unsigned char*>(timed_call_->out.data()) + timed_call_->out.size_bytes();
  for (std::int64_t i = 0; i < count; ++i) {
    // Counted from the end, where the last head's last row stands; the rows of other heads are between.
    const auto from_end = static_cast<std::size_t>((count - 1 - i) * shape.num_heads_q + 1);
    driver_.check(driver_.cuMemcpyDtoHAsync(static_cast<unsigned char*>(rows.data()) + i * row_bytes,
                                            device_pointer(end - from_end * row_bytes), row_bytes, stream_.get()),
                  "cuMemcpyDtoHAsync");
  }
  stream_.synchronize();
  return rows;
}

std::vector<double> GpuTuningBench::time(const Variant& variant, int launches) {
  Kernel& kernel = *kernels_.at(variant);
  if (!std::exchange(kernel.warm, true)) kernel.timed->enqueue(driver_);
  return timer_.measure(launches, [&] { kernel.timed->enqueue(driver_); });
}

double GpuTuningBench::seconds() {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count();
}

}  // namespace flashjit::runtime
