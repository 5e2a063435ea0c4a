// SPDX-License-Identifier: Apache-2.0
#include "runtime/backends/gpu_backward_bench.h"

#include <chrono>
#include <utility>

#include "runtime/backends/gpu_backend.h"
#include "runtime/backends/gpu_operation.h"
#include "runtime/backends/kernels.h"
#include "runtime/cuda/private_stream.h"
#include "runtime/cuda/timer.h"
#include "runtime/support/job_pool.h"

namespace flashjit::runtime {
namespace {

class GpuBackwardBench : public TuningBenchOf<BackwardVariant> {
 public:
  GpuBackwardBench(KernelStore& store, Autotuner& autotuner, const Logger& log, const generator::Templates& templates,
                   const Device& device, const BackwardProblem& problem, const CallShape& shape, int jobs)
      : driver_(Driver::load()),
        device_(device),
        architecture_(require_architecture(device)),
        plain_kernels_(templates),
        kernels_(templates, store, autotuner, log, nullptr),
        backend_(kernels_),
        stream_(driver_, device),
        timer_(driver_, device, stream_.get(), true),
        bench_(place(store), problem, shape, kGradientCheckShapes, jobs > 0 ? jobs : compile_jobs_of_machine()) {}
  // Its kernels may not be unloaded while one runs.
  ~GpuBackwardBench() override { driver_.cuStreamSynchronize(stream_.get()); }

  std::vector<Compiled> compile(const std::vector<BackwardVariant>& variants, const std::function<bool()>& stop,
                                const std::function<void(int)>& done) override {
    return bench_.compile(variants, stop, done);
  }
  std::string check(const BackwardVariant& variant) override { return bench_.check(variant); }
  std::vector<double> time(const BackwardVariant& variant, int launches) override {
    return bench_.time(variant, launches);
  }
  double seconds() override { return bench_.seconds(); }

 private:
  BackwardBenchPlace place(KernelStore& store) {
    return {backend_,
            plain_kernels_,
            store,
            architecture_,
            architecture_.name,
            stream_.get(),
            device_.info.ordinal,
            [this](BackwardCall& call, int repeats) { return time(call, repeats); },
            [] {
              const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
              return now.count();
            }};
  }

  // All launches together, made before, and once before they are measured.
  std::vector<double> time(BackwardCall& call, int repeats) {
    std::vector<std::pair<Launch, CUfunction>> launches;
    for (const MakeBackwardLaunch make : backward_launches(call)) {
      PlainLaunch made = make(call, architecture_, plain_kernels_);
      if (made.launch.blocks == 0) continue;
      write_tensor_maps(driver_, made.launch);
      launches.emplace_back(made.launch, kernels_.function_of(made.kernel, device_));
    }
    const auto run = [&] {
      for (auto& [launch, function] : launches) enqueue(driver_, launch, function, stream_.get());
    };
    run();
    return timer_.measure(repeats, run);
  }

  const Driver& driver_;
  const Device& device_;
  const Architecture& architecture_;
  PlainKernels plain_kernels_;
  Kernels kernels_;
  GpuBackend backend_;
  const PrivateStream stream_;
  KernelTimer timer_;
  BackwardBench bench_;
};

}  // namespace

std::unique_ptr<TuningBenchOf<BackwardVariant>> make_gpu_backward_bench(
    KernelStore& store, Autotuner& autotuner, const Logger& log, const generator::Templates& templates,
    const Device& device, const BackwardProblem& problem, const CallShape& shape, int jobs) {
  return std::make_unique<GpuBackwardBench>(store, autotuner, log, templates, device, problem, shape, jobs);
}

}  // namespace flashjit::runtime
