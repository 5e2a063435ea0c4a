// SPDX-License-Identifier: Apache-2.0
// The tuner's bench for gradients on a GPU.
#pragma once

#include <memory>

#include "runtime/backends/backward_bench.h"
#include "runtime/cuda/device.h"
#include "runtime/tuning/autotuner.h"

namespace flashjit::runtime {

// As GpuTuningBench, of which what is said of stream, memory and threads holds. What it loads is gone with it.
std::unique_ptr<TuningBenchOf<BackwardVariant>> make_gpu_backward_bench(
    KernelStore& store, Autotuner& autotuner, const Logger& log, const generator::Templates& templates,
    const Device& device, const BackwardProblem& problem, const CallShape& shape, int jobs);

}  // namespace flashjit::runtime
