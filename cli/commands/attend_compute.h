// SPDX-License-Identifier: Apache-2.0
// The work of flashjit attend: by kernels on the GPU or in the emulator, or by the reference on the CPU, and the
// comparison with the reference.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/engine.h>
#include <flashjit/reference.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/io/option_tensors.h"
#include "cli/io/text_options.h"

namespace flashjit::cli {

// What gradients are asked for, and of what.
struct GradientInputs {
  HostTensor dout;                 // the dtype and shape of the output
  std::optional<HostTensor> dlse;  // f32, the shape of the LSE
  bool dq = false, dk = false, dv = false;
  bool dbias = false, dslopes = false, dsinks = false;
  std::optional<BackwardVariant> variant;
  bool deterministic = false;
};

struct Inputs {
  HostTensor q, k, v;              // of packed sequences in a batch of 1
  bool values_transposed = false;  // v is given to kernels so
  std::vector<OptionTensor> tensors;
  Texts texts;
  AttentionOptions options;                 // without these
  std::optional<GradientInputs> gradients;  // none: they are not asked for

  AttentionOptions options_on_host() const { return texts.on_host(with_tensors(options, tensors)); }
  Dims out_shape() const;  // (batch, seqlen_q, heads_q, head_dim_v)
  Dims lse_shape() const;  // (batch, heads_q, seqlen_q)
  DType out_dtype() const { return options.out_dtype.value_or(q.dtype()); }
};

struct Answer {
  HostTensor out;
  HostTensor lse;  // f32
  // Those that are asked for, in the dtypes of what they are of.
  std::optional<HostTensor> dq, dk, dv, dbias, dslopes, dsinks;
  std::string device;  // "NVIDIA H200", "emulated sm_90a" or "CPU reference"
  // By a kernel:
  std::optional<KernelInfo> kernel;
  double first_call_ms = 0;      // compiles or loads the kernel, launches, and copies the output back
  double first_backward_ms = 0;  // likewise of the gradients
  // On the GPU:
  struct Speed {
    double kernel_us = 0;          // median
    std::optional<double> tflops;  // where all sequences have one length
  };
  std::optional<Speed> speed;
  // By the reference:
  double cpu_ms = 0;
};

// variant: empty for the default.
Answer attend_by_kernel(Engine& engine, const DeviceInfo& device, const Inputs& inputs, const std::string& variant);
// Throws Error(unsupported) for inputs with texts, which a CPU does not run.
Answer attend_by_reference(const Inputs& inputs);

// A result beside that of the reference.
struct Compared {
  const char* name;  // "out", "lse", "dq", ...
  reference::Comparison comparison;
};
using Check = std::vector<Compared>;
bool has_passed(const Check& check);
// engine: that of the answer; null for one of the reference itself.
Check check_against_reference(Engine* engine, const Inputs& inputs, const Answer& answer);

}  // namespace flashjit::cli
