// SPDX-License-Identifier: Apache-2.0
// The work of flashjit attend: on the GPU or on the CPU, and the comparison with the reference.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/engine.h>
#include <flashjit/reference.h>

#include <optional>
#include <string>

namespace flashjit::cli {

struct Inputs {
  HostTensor q, k, v;
  bool causal = false;
  std::optional<float> scale;

  AttentionOptions options() const;
};

struct Answer {
  HostTensor out;      // the dtype of q
  HostTensor lse;      // f32
  std::string device;  // "NVIDIA H200" or "CPU reference"
  // On the GPU:
  std::optional<KernelInfo> kernel;
  double first_call_ms = 0;  // compiles or loads the kernel, launches, and copies the output back
  double kernel_us = 0;      // median
  double tflops = 0;
  // On the CPU:
  double cpu_ms = 0;
};

// variant: empty for the default.
Answer attend_on_gpu(Engine& engine, const DeviceInfo& gpu, const Inputs& inputs, const std::string& variant);
Answer attend_on_cpu(const Inputs& inputs);

struct Check {
  reference::Comparison out, lse;
  bool passed() const { return out.passed && lse.passed; }
};
Check check_against_reference(const Inputs& inputs, const Answer& answer);

}  // namespace flashjit::cli
