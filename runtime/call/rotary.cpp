// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/rotary.h"

#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

void add_rotary_table(Operands& operands, const char* name, const Tensor& table, const Tensor& cosines,
                      std::int64_t head_dim) {
  if (table.dtype > DType::f32) reject("{}: dtype must be f16, bf16 or f32, was {}", name, to_string(table.dtype));
  check_shape(name, table, kRotaryRules);
  if (table.shape[0] == 0) reject("{}: positions must be at least 1, was 0", name);
  const std::int64_t half = table.shape[1], most = head_dim / 2;
  if (half == 0 || half % kStrideStep != 0 || half > most)
    reject("{}: rotary_dim / 2 must be a multiple of {} from {} to {}, half of head_dim, was {}", name, kStrideStep,
           kStrideStep, most, half);
  if (table.dtype != cosines.dtype || table.shape != cosines.shape)
    reject("{}: must be {} of shape {} like rotary_cos, was {} of shape {}", name, to_string(cosines.dtype),
           to_string(cosines.shape), to_string(table.dtype), to_string(table.shape));
  add_operand(operands, name, table, Operand::Role::rotary, false);
}

}  // namespace

generator::Rotary GivenRotary::kind() const noexcept {
  if (!cosines) return generator::Rotary::none;
  return interleaved ? generator::Rotary::neighbours : generator::Rotary::halves;
}

void check_choice(const GivenRotary& rotary) {
  if (rotary.cosines.has_value() != rotary.sines.has_value())
    reject("{}: must be given beside {}, was not", rotary.cosines ? "rotary_sin" : "rotary_cos",
           rotary.cosines ? "rotary_cos" : "rotary_sin");
  if (rotary.cosines) return;
  if (rotary.positions) reject("positions: must not be given without rotary_cos");
  if (rotary.interleaved) reject("rotary_interleaved: must be false without rotary_cos, was true");
}

void add_rotary(Operands& operands, const GivenRotary& rotary, std::int64_t head_dim, std::int64_t tokens,
                const char* of_tokens) {
  if (!rotary.cosines) return;
  add_rotary_table(operands, "rotary_cos", *rotary.cosines, *rotary.cosines, head_dim);
  add_rotary_table(operands, "rotary_sin", *rotary.sines, *rotary.cosines, head_dim);
  add_numbers(operands, "positions", rotary.positions, tokens, of_tokens, true);
}

generator::TokenNumbers numbers_of(const std::optional<Tensor>& tensor) noexcept {
  if (!tensor) return {};
  return {static_cast<const char*>(tensor->data), tensor->dtype == DType::i64};
}

generator::RotaryTables rotary_tables(const GivenRotary& rotary) noexcept {
  if (!rotary.cosines) return {};
  const auto bytes = static_cast<std::int64_t>(size_of(rotary.cosines->dtype));
  const bool has_steps = rotary.cosines->shape[0] > 1;
  return {static_cast<const char*>(rotary.cosines->data),     static_cast<const char*>(rotary.sines->data),
          has_steps ? rotary.cosines->strides[0] * bytes : 0, has_steps ? rotary.sines->strides[0] * bytes : 0,
          static_cast<int>(rotary.cosines->shape[0]),         numbers_of(rotary.positions)};
}

}  // namespace flashjit::runtime
