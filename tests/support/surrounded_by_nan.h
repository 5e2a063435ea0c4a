// SPDX-License-Identifier: Apache-2.0
// A tensor in the midst of memory that is NaN: rows before the first and after the last, columns after the last,
// another head, and between batches. What a kernel reads beyond the tensor shows.
#pragma once

#include <cstdint>
#include <limits>

#include "flashjit/tensor.h"

namespace flashjit::tests {

inline constexpr std::int64_t kRowsAround = 80, kHeadsAround = 1, kColumnsAround = 8;

// [batch, seqlen, heads, head_dim] values inside a larger tensor; view_inside() finds them there.
inline HostTensor surrounded_by_nan(const HostTensor& values) {
  const Dims& shape = values.shape();
  HostTensor memory(values.dtype(),
                    {shape[0], shape[1] + 2 * kRowsAround, shape[2] + kHeadsAround, shape[3] + kColumnsAround});
  const Dims& outer = memory.shape();
  std::int64_t at = 0;
  for (std::int64_t batch = 0; batch < outer[0]; ++batch)
    for (std::int64_t outer_row = 0; outer_row < outer[1]; ++outer_row)
      for (std::int64_t head = 0; head < outer[2]; ++head)
        for (std::int64_t column = 0; column < outer[3]; ++column) {
          const std::int64_t row = outer_row - kRowsAround;
          const bool inside = row >= 0 && row < shape[1] && head < shape[2] && column < shape[3];
          const std::int64_t from = ((batch * shape[1] + row) * shape[2] + head) * shape[3] + column;
          store_element(
              memory.data(), memory.dtype(), at++,
              inside ? load_element(values.data(), values.dtype(), from) : std::numeric_limits<double>::quiet_NaN());
        }
  return memory;
}

inline Tensor view_inside(Tensor memory) {
  memory.data = static_cast<char*>(memory.data) +
                kRowsAround * memory.strides[1] * static_cast<std::int64_t>(size_of(memory.dtype));
  memory.shape[1] -= 2 * kRowsAround, memory.shape[2] -= kHeadsAround, memory.shape[3] -= kColumnsAround;
  return memory;
}

}  // namespace flashjit::tests
