// SPDX-License-Identifier: Apache-2.0
// Which probabilities dropout keeps, for whoever asks for many.
#pragma once

#include <cstdint>

#include "flashjit/dropout.h"

namespace flashjit::runtime {

// Throws Error(invalid_argument) for a probability outside of [0, 1).
void check(const Dropout& dropout);

// One row of a query head.
class DropoutRow {
 public:
  DropoutRow(const Dropout& dropout, std::int64_t num_heads_q, std::int64_t batch, std::int64_t head,
             std::int64_t query);
  bool keeps(std::int64_t key) const noexcept;

 private:
  Dropout dropout_;
  DropoutThreshold threshold_;
  std::uint32_t row_of_heads_, query_;
};

}  // namespace flashjit::runtime
