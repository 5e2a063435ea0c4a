// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/case_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace flashjit::cli {
namespace {

// What key adds to the score of an even row; an odd row gets the opposite.
double level(Scores scores, std::int64_t key, std::int64_t seqlen) {
  constexpr double kRamp = 300, kSpike = 400, kLow = -3000, kHuge = 1.8e9;
  constexpr double kJump = 200;  // f32 has exp up to 88
  constexpr std::int64_t kJumpKeys = 64, kMaxJumps = 15;
  const auto spike_at = [&](std::int64_t at) { return key == at ? kSpike : 0.0; };
  switch (scores) {
    case Scores::ramp:
      return kRamp * static_cast<double>(key) / static_cast<double>(seqlen);
    case Scores::jumps:
      return kJump * static_cast<double>(std::min((seqlen - 1 - key) / kJumpKeys, kMaxJumps));
    case Scores::spike_first:
      return spike_at(0);
    case Scores::spike_middle:
      return spike_at(seqlen / 2);
    case Scores::spike_last:
      return spike_at(seqlen - 1);
    case Scores::very_low:
      return 2 * key >= seqlen ? kLow : 0;
    case Scores::huge:
      return key == seqlen / 3 ? kHuge : key == 2 * seqlen / 3 ? -kHuge : 0;
    case Scores::infinite:
      return key == seqlen / 3 ? std::numeric_limits<double>::infinity() : 0;
    case Scores::random:
    case Scores::equal:
      break;
  }
  return 0;
}

// Of so many columns what they bear of levels is a value that f16 has: an infinite key would make NaN of all gradients
// that it meets with a probability of 0. raw: products under the default scale, of a column alone.
std::int64_t columns_of(std::int64_t least, double raw, Scores scores, std::int64_t seqlen) {
  constexpr double kLargestOfF16 = 65504;
  double largest = 0;
  for (std::int64_t key = 0; key < seqlen; ++key)
    if (const double at = std::abs(raw * level(scores, key, seqlen)); std::isfinite(at))
      largest = std::max(largest, at);
  std::int64_t columns = least;
  while (largest > static_cast<double>(columns) * kLargestOfF16) columns *= 2;
  return columns;
}

// The first columns of q are size or -size, and those of k such that their product under the default scale is the
// level. What 16 bits do not hold is spread over both, and over as many columns as it needs: of small head dims all of
// them, which are eight.
void add_levels(Scores scores, HostTensor& q, HostTensor& k) {
  const auto for_each_row = [](const HostTensor& tensor, auto visit) {
    const Dims& shape = tensor.shape();
    const std::int64_t rows = shape[0] * shape[1] * shape[2];
    for (std::int64_t i = 0; i < rows; ++i) visit(i / shape[2] % shape[1], i * shape[3]);
  };
  const std::int64_t seqlen = k.shape()[1];
  const double size = scores == Scores::huge ? 60000 : 1;
  const double of_column = std::sqrt(static_cast<double>(k.shape()[3])) / size;
  const std::int64_t columns = columns_of(scores == Scores::huge ? 8 : 1, of_column, scores, seqlen);
  const double to_raw = of_column / static_cast<double>(columns);
  const auto fill = [columns](HostTensor& tensor, std::int64_t at, double value) {
    for (std::int64_t i = 0; i < columns; ++i) store_element(tensor.data(), tensor.dtype(), at + i, value);
  };
  for_each_row(q, [&](std::int64_t row, std::int64_t at) { fill(q, at, row % 2 == 0 ? size : -size); });
  for_each_row(k, [&](std::int64_t key, std::int64_t at) { fill(k, at, to_raw * level(scores, key, seqlen)); });
}

void repeat_first_key(HostTensor& k) {
  const Dims& shape = k.shape();
  const std::int64_t row = shape[2] * shape[3];
  for (std::int64_t i = 0; i < shape[0] * shape[1] * row; ++i) {
    const std::int64_t first = i / (shape[1] * row) * shape[1] * row + i % row;
    store_element(k.data(), k.dtype(), i, load_element(k.data(), k.dtype(), first));
  }
}

void clear_expected_nan(HostTensor& tensor, std::vector<double>& exact) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (!std::isnan(exact[i]) || !std::isnan(load_element(tensor.data(), tensor.dtype(), at))) continue;
    exact[i] = 0;
    store_element(tensor.data(), tensor.dtype(), at, 0);
  }
}

}  // namespace

const char* to_string(Scores scores) noexcept {
  switch (scores) {
    case Scores::random:
      return "random";
    case Scores::ramp:
      return "ramp";
    case Scores::jumps:
      return "jumps";
    case Scores::spike_first:
      return "spike-first";
    case Scores::spike_middle:
      return "spike-middle";
    case Scores::spike_last:
      return "spike-last";
    case Scores::equal:
      return "equal";
    case Scores::very_low:
      return "very-low";
    case Scores::huge:
      return "huge";
    case Scores::infinite:
      return "infinite";
  }
  return "?";
}

void shape_scores(Scores scores, HostTensor& q, HostTensor& k) {
  if (scores == Scores::random) return;
  if (scores == Scores::equal)
    repeat_first_key(k);
  else
    add_levels(scores, q, k);
}

HostTensor swap_seqlen_and_heads(const HostTensor& tensor) {
  const Dims& shape = tensor.shape();
  HostTensor swapped(tensor.dtype(), {shape[0], shape[2], shape[1], shape[3]});
  std::int64_t from = 0;
  for (std::int64_t batch = 0; batch < shape[0]; ++batch)
    for (std::int64_t i = 0; i < shape[1]; ++i)
      for (std::int64_t j = 0; j < shape[2]; ++j)
        for (std::int64_t column = 0; column < shape[3]; ++column) {
          const std::int64_t to = ((batch * shape[2] + j) * shape[1] + i) * shape[3] + column;
          store_element(swapped.data(), tensor.dtype(), to, load_element(tensor.data(), tensor.dtype(), from++));
        }
  return swapped;
}

Tensor view_with_heads_first(const Tensor& memory) {
  const Dims &shape = memory.shape, &strides = memory.strides;
  return {memory.data,
          memory.dtype,
          {shape[0], shape[2], shape[1], shape[3]},
          {strides[0], strides[2], strides[1], strides[3]}};
}

HostTensor CaseLayout::in_memory(const HostTensor& packed) const {
  return heads_first ? swap_seqlen_and_heads(packed) : packed;
}

Tensor CaseLayout::view(const DeviceTensor& memory) const {
  return heads_first ? view_with_heads_first(memory) : memory.view();
}

HostTensor filled_with_nan(DType dtype, const Dims& shape) {
  HostTensor tensor(dtype, shape);
  const auto count = static_cast<std::int64_t>(tensor.element_count());
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(tensor.data(), dtype, i, std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

void clear_expected_nan(HostTensor& out, HostTensor& lse, reference::Result& exact) {
  clear_expected_nan(out, exact.out);
  clear_expected_nan(lse, exact.lse);
}

}  // namespace flashjit::cli
