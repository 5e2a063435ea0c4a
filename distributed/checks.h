// SPDX-License-Identifier: Apache-2.0
// Checks of a call's tensors before anything is sent: later, other ranks would already wait for this one. All throw
// Error(invalid_argument), which names the tensor.
#pragma once

#include <cstdint>

#include "flashjit/distributed.h"

namespace flashjit::distributed {

inline constexpr std::int64_t kStrideStep = 8;  // what strides of rows are multiples of, in elements

void check_memory(const Engine& engine, const Group& group);
void check_group(const Engine& engine, const Group& group, const char* name, const Sharding& sharding);
// Rows as flashjit::attention takes them.
void check_rows(const char* name, const Tensor& tensor, const Dims& shape, DType dtype);
void check_lse(const Tensor& lse, const Dims& shape);

// The inputs of a call, checked: this rank's q, k and v.
struct GivenCall {
  GivenCall(const Engine& engine, const Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
            const Options& options);

  Sizes sizes;
  std::int64_t queries, keys;  // rows of this rank
  Dims out_shape() const { return {sizes.batch, queries, sizes.num_heads_q, sizes.head_dim_v}; }
  Dims lse_shape() const { return {sizes.batch, sizes.num_heads_q, queries}; }
};

}  // namespace flashjit::distributed
