// SPDX-License-Identifier: Apache-2.0
#include "cli/io/transposed_values.h"

#include <limits>

namespace flashjit::cli {
namespace {

constexpr std::int64_t kRowBytes = 16;  // of which rows are multiples

struct Place {
  std::int64_t batch, key, head, dim;
};
// each(place, its number) of all elements of a shape [batch, heads, head_dim, keys].
template <class Each>
void for_each_place(const Dims& shape, Each each) {
  std::int64_t at = 0;
  for (std::int64_t batch = 0; batch < shape[0]; ++batch)
    for (std::int64_t head = 0; head < shape[1]; ++head)
      for (std::int64_t dim = 0; dim < shape[2]; ++dim)
        for (std::int64_t key = 0; key < shape[3]; ++key) each(Place{batch, key, head, dim}, at++);
}

std::int64_t offset_in(const Dims& shape, const Place& place) {
  return ((place.batch * shape[1] + place.key) * shape[2] + place.head) * shape[3] + place.dim;
}

}  // namespace

HostTensor with_keys_along_rows(const HostTensor& values) {
  const Dims& shape = values.shape();
  const std::int64_t step = kRowBytes / static_cast<std::int64_t>(size_of(values.dtype()));
  HostTensor memory(values.dtype(), {shape[0], shape[2], shape[3], (shape[1] + step - 1) / step * step});
  for_each_place(memory.shape(), [&](const Place& place, std::int64_t at) {
    store_element(memory.data(), values.dtype(), at,
                  place.key < shape[1] ? load_element(values.data(), values.dtype(), offset_in(shape, place))
                                       : std::numeric_limits<double>::quiet_NaN());
  });
  return memory;
}

Tensor view_with_keys_along_rows(const Tensor& memory, std::int64_t seqlen) {
  const Dims &shape = memory.shape, &strides = memory.strides;
  return {memory.data,
          memory.dtype,
          {shape[0], seqlen, shape[1], shape[2]},
          {strides[0], strides[3], strides[1], strides[2]}};
}

HostTensor with_dims_along_rows(const HostTensor& transposed) {
  const Dims& shape = transposed.shape();
  HostTensor values(transposed.dtype(), {shape[0], shape[3], shape[1], shape[2]});
  for_each_place(shape, [&](const Place& place, std::int64_t at) {
    store_element(values.data(), values.dtype(), offset_in(values.shape(), place),
                  load_element(transposed.data(), values.dtype(), at));
  });
  return values;
}

}  // namespace flashjit::cli
