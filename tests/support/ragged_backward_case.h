// SPDX-License-Identifier: Apache-2.0
// A call for gradients of packed sequences.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "tests/support/backward_case.h"

namespace flashjit::tests {

inline void ints(BackwardCase& c, std::optional<Tensor> AttentionOptions::*option, const std::vector<int>& values) {
  c.values(option, DType::i32, {static_cast<std::int64_t>(values.size())},
           [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

inline void poison_rows(HostTensor& rows, std::int64_t first, std::int64_t end) {
  const std::int64_t width = static_cast<std::int64_t>(rows.element_count()) / rows.shape()[0];
  for (std::int64_t i = first * width; i < end * width; ++i)
    store_element(rows.data(), rows.dtype(), i, std::numeric_limits<double>::quiet_NaN());
}

// Five sequences: one with padding behind it, one without keys, one without queries, one of which some rows are not
// used. Rows of no sequence are NaN.
inline BackwardCase packed_case(int head_dim, int head_dim_v, DType dtype = DType::bf16) {
  using O = AttentionOptions;
  BackwardCase c({.batch = 1,
                  .seqlen_q = 310,
                  .seqlen_kv = 400,
                  .num_heads_q = 4,
                  .num_heads_kv = 2,
                  .head_dim = head_dim,
                  .head_dim_v = head_dim_v},
                 dtype);
  c.pack_queries(), c.pack_keys();
  ints(c, &O::cu_seqlens_q, {0, 70, 100, 100, 290, 300});
  ints(c, &O::cu_seqlens_kv, {0, 60, 60, 160, 370, 390});
  ints(c, &O::seqused_q, {65, 30, 0, 190, 10});
  ints(c, &O::seqused_kv, {60, 0, 100, 200, 20});
  for (HostTensor* rows : {&c.q, &c.dout}) poison_rows(*rows, 65, 70), poison_rows(*rows, 300, 310);
  for (HostTensor* rows : {&c.k, &c.v}) poison_rows(*rows, 360, 370), poison_rows(*rows, 390, 400);
  return c;
}

}  // namespace flashjit::tests
