// SPDX-License-Identifier: Apache-2.0
// Options of a call that are a tensor with a number for each query head: slopes and sinks.
#pragma once

#include <flashjit/attention.h>
#include <flashjit/tensor.h>

#include <optional>
#include <vector>

namespace flashjit::cli {

struct HeadNumbers {
  std::optional<Tensor> AttentionOptions::*option;
  HostTensor values;  // f32 [heads_q] or [batch, heads_q]
};

// The options with the numbers where they are.
inline AttentionOptions with_numbers(AttentionOptions options, const std::vector<HeadNumbers>& of_heads) {
  for (const HeadNumbers& numbers : of_heads) options.*numbers.option = numbers.values.view();
  return options;
}

// The options with the numbers in memory of the device.
inline AttentionOptions with_numbers(AttentionOptions options, const std::vector<HeadNumbers>& of_heads, int device,
                                     std::vector<DeviceTensor>& memory) {
  for (const HeadNumbers& numbers : of_heads)
    options.*numbers.option = memory.emplace_back(numbers.values.to_device(nullptr, device)).view();
  return options;
}

}  // namespace flashjit::cli
