// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/backward_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "cache/digest.h"
#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "runtime/call/backward_kernels.h"
#include "runtime/support/job_pool.h"

namespace flashjit::runtime {
namespace {

constexpr std::uint64_t kSeedOfDout = 6;

HostTensor whole(const RepeatedNormal& tensor, const Dims& shape) {
  const HostTensor& block = tensor.block();
  HostTensor all(block.dtype(), shape);
  const std::size_t bytes = all.element_count() * size_of(all.dtype()),
                    step = block.element_count() * size_of(block.dtype());
  for (std::size_t begin = 0; begin < bytes; begin += step)
    std::memcpy(static_cast<std::byte*>(all.data()) + begin, block.data(), std::min(step, bytes - begin));
  return all;
}

// What a kernel forgets to write shows.
HostTensor not_numbers(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  constexpr int kNanByte = 0xff;  // numbers of such bytes are NaN, in f16, bf16 and f32
  std::memset(tensor.data(), kNanByte, tensor.element_count() * size_of(dtype));
  return tensor;
}

}  // namespace

std::vector<DeviceTensor> allocate_scratch(BackwardCall& call, Stream stream, int device) {
  BackwardScratch scratch = backward_scratch(call);
  std::vector<DeviceTensor> memory;
  for (Tensor* const tensor : scratch.all())
    if (tensor->shape.size() > 0)
      *tensor = memory.emplace_back(DeviceTensor::allocate(DType::f32, tensor->shape, stream, device)).view();
  add_scratch(call, scratch);
  return memory;
}

// The tensors of one call, with what attention gives.
class BackwardBench::Call {
 public:
  Call(const BackwardBenchPlace& place, const BackwardProblem& problem, const TuningCall& inputs,
       const std::vector<HostTensor>& q_k_v)
      : place_(place), shape(inputs.shape), options_(inputs.options) {
    const TensorShapes shapes(inputs.problem, inputs.shape);
    dout_host = HostTensor::random_normal(inputs.problem.dtype, shapes.out, kSeedOfDout);
    q_ = keep(q_k_v[0]), k_ = keep(q_k_v[1]), v_ = keep(q_k_v[2]), dout_ = keep(dout_host);
    out_ = keep(not_numbers(inputs.problem.dtype, shapes.out)), lse_ = keep(not_numbers(DType::f32, shapes.lse));
    for (const OptionTensor& tensor : inputs.tensors) tensor.put_into(options_, keep(tensor.memory).data);
    for (const Tensor* tensor : {&q_, &k_, &v_}) poisons_.push_back(not_numbers(tensor->dtype, tensor->shape));
    if (problem.slopes) into_.dslopes = keep(HostTensor(DType::f32, options_.alibi_slopes->shape));
    if (problem.bias) into_.dbias = keep(HostTensor(options_.bias->dtype, options_.bias->shape));
    backward_.deterministic = problem.deterministic;
    run_attention();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void poison() {
    gradients_.clear();
    for (const HostTensor& poison : poisons_) gradients_.push_back(poison.to_device(place_.stream, place_.device));
    into_.dq = gradients_[0].view(), into_.dk = gradients_[1].view(), into_.dv = gradients_[2].view();
  }
  // By the variant, behind poison().
  BackwardCall call(const BackwardVariant& variant) {
    backward_.variant = variant;
    BackwardCall made = validate_backward(given_);
    choose_variant(made, place_.architecture, place_.backend.resident_blocks(made.forward.operands, place_.stream));
    return made;
  }
  void run(const BackwardVariant& variant) {
    BackwardCall made = call(variant);
    const std::vector<DeviceTensor> memory = allocate_scratch(made, place_.stream, place_.device);
    for (const MakeBackwardLaunch make : backward_launches(made))
      place_.backend.run(made.forward.operands, place_.stream, [&](const Architecture& architecture) {
        return make(made, architecture, place_.plain_kernels);
      });
  }
  std::vector<HostTensor> gradients() const {
    std::vector<HostTensor> here;
    for (const DeviceTensor& gradient : gradients_) here.push_back(HostTensor::from_device(gradient));
    return here;
  }

 private:
  Tensor keep(const HostTensor& tensor) {
    return kept_.emplace_back(tensor.to_device(place_.stream, place_.device)).view();
  }
  // By a kernel that reads any tensor, in its first variant.
  void run_attention() {
    AttentionOptions options = options_;
    options.lse = lse_, options.stream = place_.stream;
    ForwardCall attention = validate_inputs(q_, k_, v_, options);
    validate_out(attention, out_);
    const Variant variant = generator::default_without_tma(attention.problem, place_.architecture);
    attention.variant = &variant;
    place_.backend.run(attention, options);
    options_.stream = place_.stream;
  }

  const BackwardBenchPlace& place_;

 public:
  const CallShape shape;
  HostTensor dout_host;

 private:
  AttentionOptions options_;
  Tensor q_, k_, v_, dout_, out_, lse_;
  GradientTensors into_;
  BackwardOptions backward_;
  std::vector<DeviceTensor> kept_, gradients_;
  std::vector<HostTensor> poisons_;
  const GivenGradients given_{dout_, q_, k_, v_, out_, lse_, into_, options_, backward_};
};

BackwardBench::BackwardBench(BackwardBenchPlace place, const BackwardProblem& problem, const CallShape& shape,
                             const std::vector<CallShape>& check_shapes, int jobs)
    : place_(std::move(place)), problem_(problem), jobs_(jobs), of_default_(check_shapes.size() + 1) {
  const TimedCase timed(problem.attention, shape);
  const TensorShapes shapes(problem.attention, timed.shape);
  timed_ =
      std::make_unique<Call>(place_, problem, timed,
                             std::vector{whole(timed.q, shapes.q), whole(timed.k, shapes.k), whole(timed.v, shapes.v)});
  for (const CallShape& small : check_shapes) {
    const CheckCase inputs(problem.attention, small);
    small_.push_back(std::make_unique<Call>(place_, problem, inputs, std::vector{inputs.q, inputs.k, inputs.v}));
    expected_.push_back(expected_gradients(inputs, small_.back()->dout_host));
  }
  timed_->poison();
}

BackwardBench::~BackwardBench() = default;

std::vector<CompiledCandidate> BackwardBench::compile(const std::vector<BackwardVariant>& variants,
                                                      const std::function<bool()>& stop,
                                                      const std::function<void(int)>& done) {
  std::vector<Compiled> results(variants.size());
  run_jobs(
      variants.size(), jobs_, [&](std::size_t i) { results[i] = compile_one(variants[i]); }, stop, done);
  return results;
}

CompiledCandidate BackwardBench::compile_one(const BackwardVariant& variant) const try {
  const generator::PlainKernel& kernel = backward_kernel(problem_, variant, place_.architecture, place_.plain_kernels);
  const KernelStore::Shared image = place_.store.get(KernelRequest(kernel.source, place_.target, {})).image;
  return {true, "", image->spill_bytes, cache::digest_of(image->bytes).hex()};
} catch (const std::exception& error) {
  return {false, error.what(), 0, ""};
}

std::string BackwardBench::check(const BackwardVariant& variant) try {
  const bool is_first = of_default_.back().empty();
  for (std::size_t i = 0; i < small_.size(); ++i)
    if (std::string why = check_small(i, variant, is_first); !why.empty()) return why;
  return check_timed(variant, is_first);
} catch (const Error& error) {
  if (error.code() == ErrorCode::driver) throw;
  return error.what();
}

// What the second run writes: it finds what the first one left.
std::string BackwardBench::check_small(std::size_t index, const BackwardVariant& variant, bool is_first) {
  Call& call = *small_[index];
  for (int i = 0; i < 2; ++i) {
    call.poison();
    call.run(variant);
  }
  std::vector<HostTensor> made = call.gradients();
  std::string why =
      is_first ? why_not_as_expected(made, expected_[index]) : why_unlike(made, of_default_[index], expected_[index]);
  if (is_first) of_default_[index] = std::move(made);
  return why.empty() ? why : fmt::format("{} ({} queries, {} keys)", why, call.shape.seqlen_q, call.shape.seqlen_kv);
}

std::string BackwardBench::check_timed(const BackwardVariant& variant, bool is_first) {
  timed_->poison();
  timed_->run(variant);
  std::vector<HostTensor> made = timed_->gradients();
  if (!is_first) return why_unlike(made, of_default_.back());
  of_default_.back() = std::move(made);
  return why_unlike(of_default_.back(), of_default_.back());  // numbers, all of them
}

std::vector<double> BackwardBench::time(const BackwardVariant& variant, int launches) {
  BackwardCall call = timed_->call(variant);
  const std::vector<DeviceTensor> memory = allocate_scratch(call, place_.stream, place_.device);
  return place_.time(call, launches);
}

}  // namespace flashjit::runtime
