// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of a call: its tables checked, and as kernels take them.
#pragma once

#include <cstdint>
#include <optional>

#include "flashjit/tensor.h"
#include "generator/arguments.h"
#include "generator/source.h"
#include "runtime/call/operands.h"

namespace flashjit::runtime {

// As options say it, whose tensors these are.
struct GivenRotary {
  template <class Options>
  explicit GivenRotary(const Options& opts) noexcept
      : cosines(opts.rotary_cos),
        sines(opts.rotary_sin),
        positions(opts.positions),
        interleaved(opts.rotary_interleaved) {}

  const std::optional<Tensor>&cosines, &sines, &positions;
  bool interleaved;

  generator::Rotary kind() const noexcept;
  // Pairs of elements that turn, of each row.
  std::int64_t pairs() const noexcept { return cosines ? cosines->shape[1] : 0; }
  // Of the tables; where there are none, that of the rows.
  DType dtype(DType of_rows) const noexcept { return cosines ? cosines->dtype : of_rows; }
};

// These throw Error(invalid_argument). Which of the options are given together:
void check_choice(const GivenRotary& rotary);
// Adds what there is to the operands of a call with so many tokens of rows of this head_dim. of_tokens: what of them a
// position is: "one for each token of k".
void add_rotary(Operands& operands, const GivenRotary& rotary, std::int64_t head_dim, std::int64_t tokens,
                const char* of_tokens);

generator::RotaryTables rotary_tables(const GivenRotary& rotary) noexcept;
generator::TokenNumbers numbers_of(const std::optional<Tensor>& tensor) noexcept;

}  // namespace flashjit::runtime
