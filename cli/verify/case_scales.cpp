// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/case_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace flashjit::cli {
namespace {

double largest_of(DType dtype) { return dtype == DType::e5m2 ? 57344 : 448; }
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr std::int64_t kRowsOfBlock = 128;  // that have one scale, where blocks do

enum class ScalesOf { tokens, blocks, heads_of_entries, heads, all, none };

std::int64_t blocks_of(const Dims& rows) { return (rows[1] + kRowsOfBlock - 1) / kRowsOfBlock; }

Dims shape_of(ScalesOf of, const Dims& rows) {
  if (of == ScalesOf::tokens) return {rows[0], rows[1], rows[2]};
  if (of == ScalesOf::blocks) return {rows[0], rows[2], blocks_of(rows)};
  if (of == ScalesOf::heads_of_entries) return {rows[0], rows[2]};
  return {of == ScalesOf::heads ? rows[2] : 1};
}
// Of a row, counted through the tensor.
std::int64_t place_of(ScalesOf of, std::int64_t row, const Dims& rows) {
  const std::int64_t seqlen = rows[1], heads = rows[2];
  if (of == ScalesOf::blocks)
    return (row / heads / seqlen * heads + row % heads) * blocks_of(rows) + row / heads % seqlen / kRowsOfBlock;
  if (of == ScalesOf::heads_of_entries) return row / heads / seqlen * heads + row % heads;
  return of == ScalesOf::tokens ? row : of == ScalesOf::heads ? row % heads : 0;
}

// The largest number of those that have one scale becomes the largest that there is.
HostTensor scales_of(const HostTensor& rows, ScalesOf of, DType dtype) {
  const double largest = largest_of(dtype);
  const Dims& shape = rows.shape();
  std::vector<double> scales(static_cast<std::size_t>(HostTensor(DType::f32, shape_of(of, shape)).element_count()),
                             kNan);
  for (std::size_t i = 0; i < rows.element_count(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double value = std::abs(load_element(rows.data(), rows.dtype(), at));
    double& scale = scales[static_cast<std::size_t>(place_of(of, at / shape[3], shape))];
    if (std::isfinite(value) && !(scale >= value / largest)) scale = value / largest;
  }
  return HostTensor::from_doubles(DType::f32, shape_of(of, shape), scales.data(), scales.size());
}

// The same where all must be positive.
HostTensor positive_scales_of(const HostTensor& rows, ScalesOf of, DType dtype) {
  HostTensor scales = scales_of(rows, of, dtype);
  for (std::size_t i = 0; i < scales.element_count(); ++i)
    if (const auto at = static_cast<std::int64_t>(i); !(load_element(scales.data(), DType::f32, at) > 0))
      store_element(scales.data(), DType::f32, at, 1);
  return scales;
}

HostTensor stored(const HostTensor& rows, ScalesOf of, const HostTensor& scales, DType dtype) {
  const Dims& shape = rows.shape();
  HostTensor in_8_bits(dtype, shape);
  for (std::size_t i = 0; i < rows.element_count(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double scale =
        of == ScalesOf::none ? 1 : load_element(scales.data(), DType::f32, place_of(of, at / shape[3], shape));
    const double value = load_element(rows.data(), rows.dtype(), at);
    store_element(in_8_bits.data(), dtype, at, value == 0 ? 0 : value / scale);
  }
  return in_8_bits;
}

}  // namespace

void store_in_8_bits(const Problem& problem, HostTensor& k, HostTensor& v, std::uint64_t seed,
                     std::vector<OptionTensor>& tensors) {
  constexpr ScalesOf kOthers[] = {ScalesOf::heads, ScalesOf::all, ScalesOf::none};
  const ScalesOf of = problem.token_scales ? ScalesOf::tokens : kOthers[seed % std::size(kOthers)];
  const auto store = [&](HostTensor& rows, std::optional<Tensor> AttentionOptions::*option) {
    HostTensor scales = scales_of(rows, of, kv_dtype(problem));
    rows = stored(rows, of, scales, kv_dtype(problem));
    if (of != ScalesOf::none) tensors.push_back({option, std::move(scales)});
  };
  store(k, &AttentionOptions::k_scale);
  store(v, &AttentionOptions::v_scale);
}

void store_in_8_bits(const Problem& problem, HostTensor& q, HostTensor& k, HostTensor& v, std::uint64_t seed,
                     std::vector<OptionTensor>& tensors) {
  constexpr ScalesOf kAll[] = {ScalesOf::heads_of_entries, ScalesOf::heads, ScalesOf::all, ScalesOf::none};
  const std::uint64_t of_blocks = problem.block_scales ? 1 + seed / 64 % 7 : 0;  // a bit for each of the three
  const auto store = [&](HostTensor& rows, std::uint64_t which, std::optional<Tensor> AttentionOptions::*option) {
    const std::uint64_t bit = option == &AttentionOptions::q_scale ? 1 : option == &AttentionOptions::k_scale ? 2 : 4;
    const ScalesOf of = (of_blocks & bit) != 0 ? ScalesOf::blocks : kAll[which % std::size(kAll)];
    HostTensor scales = positive_scales_of(rows, of, q_dtype(problem));
    rows = stored(rows, of, scales, q_dtype(problem));
    if (of != ScalesOf::none) tensors.push_back({option, std::move(scales)});
  };
  store(q, seed, &AttentionOptions::q_scale);
  store(k, seed / 4 + seed, &AttentionOptions::k_scale);
  store(v, seed / 16 + seed, &AttentionOptions::v_scale);
}

HostTensor with_whole_rows(const HostTensor& rows) {
  const std::int64_t step = static_cast<std::int64_t>(16 / size_of(rows.dtype()));
  const Dims& shape = rows.shape();
  const std::int64_t columns = shape[3], whole = (columns + step - 1) / step * step;
  if (columns == whole) return rows;
  HostTensor padded(rows.dtype(), {shape[0], shape[1], shape[2], whole});
  for (std::size_t i = 0; i < padded.element_count(); ++i) {
    const auto at = static_cast<std::int64_t>(i), row = at / whole, column = at % whole;
    const double value = column < columns ? load_element(rows.data(), rows.dtype(), row * columns + column) : kNan;
    store_element(padded.data(), rows.dtype(), at, value);
  }
  return padded;
}

}  // namespace flashjit::cli
