// SPDX-License-Identifier: Apache-2.0
// Options of a call that are tensors.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/tensor.h>

#include <optional>
#include <vector>

namespace flashjit::cli {

struct OptionTensor {
  std::optional<Tensor> AttentionOptions::*option;
  HostTensor values;
};

// The options with the tensors where they are.
inline AttentionOptions with_tensors(AttentionOptions options, const std::vector<OptionTensor>& tensors) {
  for (const OptionTensor& tensor : tensors) options.*tensor.option = tensor.values.view();
  return options;
}

// The options with the tensors in memory of the device.
inline AttentionOptions with_tensors(AttentionOptions options, const std::vector<OptionTensor>& tensors, int device,
                                     std::vector<DeviceTensor>& memory) {
  for (const OptionTensor& tensor : tensors)
    options.*tensor.option = memory.emplace_back(tensor.values.to_device(nullptr, device)).view();
  return options;
}

}  // namespace flashjit::cli
