// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/rotary.h"

#include <algorithm>

namespace flashjit::reference {

void turn_row(void* row, DType dtype, const runtime::GivenRotary& rotary, std::int64_t position) {
  const Tensor &cosines = *rotary.cosines, &sines = *rotary.sines;
  position = std::clamp<std::int64_t>(position, 0, cosines.shape[0] - 1);
  const std::int64_t half = rotary.pairs();
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t first = rotary.interleaved ? 2 * i : i;
    const std::int64_t second = rotary.interleaved ? first + 1 : i + half;
    const double x = load_element(row, dtype, first), y = load_element(row, dtype, second);
    const double cosine = load_element(cosines.data, cosines.dtype, position * cosines.strides[0] + i);
    const double sine = load_element(sines.data, sines.dtype, position * sines.strides[0] + i);
    store_element(row, dtype, first, x * cosine - y * sine);
    store_element(row, dtype, second, y * cosine + x * sine);
  }
}

}  // namespace flashjit::reference
