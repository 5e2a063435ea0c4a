// SPDX-License-Identifier: Apache-2.0
// Values as products of e4m3 also take them: a row of memory has the keys of one dim.
#pragma once

#include <flashjit/tensor.h>

#include <cstdint>

namespace flashjit::cli {

// [batch, seqlen, heads, head_dim] values as [batch, heads, head_dim, seqlen and room], rows being multiples of 16
// bytes. NaN is in the room.
HostTensor with_keys_along_rows(const HostTensor& values);
// A [batch, seqlen, heads, head_dim] view of such memory.
Tensor view_with_keys_along_rows(const Tensor& memory, std::int64_t seqlen);
// [batch, heads, head_dim, seqlen] as [batch, seqlen, heads, head_dim].
HostTensor with_dims_along_rows(const HostTensor& transposed);

}  // namespace flashjit::cli
