// SPDX-License-Identifier: Apache-2.0
// A case of flashjit verify computed by attention_backward.
#pragma once

#include <flashjit/engine.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/io/text_options.h"
#include "cli/verify/cases.h"
#include "cli/verify/compared_case.h"

namespace flashjit::cli {

// Which gradients a call asks for, and how.
struct GradientChoices {
  bool dq = true, dk = true, dv = true;
  bool has_dlse = true;  // something depends on the LSE
  bool in_f32 = false;   // dk and dv, and those of options
  bool of_options = true;
  bool deterministic = false;
  std::optional<BackwardVariant> variant = {};  // none: what the library chooses
};
// "deterministic gradients of q k options in f32, with dlse, by mma-q64-kv64-w4-r1-s1"
std::string to_string(const GradientChoices& choices);

// A case as attention_backward() is given it.
struct BackwardCaseCall {
  Tensor dout, q, k, v, out, lse;
  GradientTensors into;
  AttentionOptions options;
  std::optional<Tensor> dlse;
  bool deterministic = false;
  std::optional<BackwardVariant> variant;
};

// Output and LSE are those of the reference, so that what is wrong is wrong in the backward kernels. Where few rows or
// keys decide, how far low precision leads astray is a matter of luck, and where a row sees one key alone its terms
// cancel in the reference, and nearly so in f32; so do the largest score and the sum that probabilities are made of. So
// the yardstick is what it does to several calls like this one at most, or what row sums do of the output as it is
// given, added in f32, or scores of which tensor cores have cut off the last bits.
class BackwardCase : public ComparedCase {
 public:
  // engine: that of the device; its references know texts, too.
  BackwardCase(Engine& engine, const CaseShape& shape, const CaseInputs& inputs, const Texts& texts, int device,
               const GradientChoices& choices, std::uint64_t seed);

  // What attention_backward, which computes the call, leaves in poisoned memory.
  CaseOutputs run(const std::function<void(const BackwardCaseCall&)>& attention_backward) const;
  CaseOutputs run(Engine& engine, const std::optional<Variant>& variant) const override;
  CaseOutputs emulate(Engine& engine, const std::optional<Variant>& variant, const EmulationOptions& options,
                      emulator::Report& report) const override;
  std::string problem_with(CaseOutputs outputs) const override;
  using ComparedCase::problem_with;

 private:
  struct Gradient {
    const char* name;
    std::optional<Tensor> GradientTensors::*tensor;
    std::vector<double> exact;
    double yardstick;     // what low precision may make of it
    HostTensor poisoned;  // in the layout of the case
    CaseLayout layout;    // of an option: none
    bool any_order;       // see CaseOutput
  };
  Tensor move(const HostTensor& tensor);       // to the device
  Tensor move_rows(const HostTensor& tensor);  // likewise, in the layout of the case

  CaseLayout layout_;
  int device_;
  BackwardCaseCall call_;  // without what it writes
  std::vector<Gradient> gradients_;
  std::vector<DeviceTensor> tensors_;
};

}  // namespace flashjit::cli
