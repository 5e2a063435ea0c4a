// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/lanes.h"

#include <fmt/format.h>

#include <string>

namespace flashjit::emulator {

void write_lanes(Warp& warp, Slot slot, const std::uint32_t (&values)[kLanes], LaneMask active) {
  warp.write(slot, values, active);
}

void write_lanes(Warp& warp, Slot slot, const std::uint64_t (&values)[kLanes], LaneMask active) {
  warp.write(slot, values, active);
}

void write_lanes(Warp& warp, Slot predicate, const bool (&values)[kLanes], LaneMask active) {
  LaneMask mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) mask |= LaneMask{values[lane]} << lane;
  warp.write_predicate(predicate, mask, active);
}

int choose_type(Decoding& decoding, Instruction& instruction, TypedHandlers handlers) {
  const std::string_view type = decoding.take_any();
  std::string known;
  for (const TypedHandler& handler : handlers) {
    if (handler.type == type) {
      instruction.run = handler.run;
      return handler.bits;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", handler.type);
  }
  decoding.fail(fmt::format("the type must be one of {}, was {}", known, type));
}

void require_operands(const Decoding& decoding, std::size_t count) {
  if (decoding.operand_count() != count)
    decoding.fail(fmt::format("it must have {} operands, has {}", count, decoding.operand_count()));
}

void take_operands(Decoding& decoding, Instruction& instruction, std::span<const int> bits) {
  require_operands(decoding, bits.size());
  instruction.operand[0] = decoding.destination(0, bits[0]);
  for (std::size_t i = 1; i < bits.size(); ++i) instruction.operand[i] = decoding.source(i, bits[i]);
  decoding.finish();
}

void take_uniform(Decoding& decoding, Instruction& instruction, std::size_t operands, TypedHandlers handlers) {
  std::array<int, std::tuple_size_v<decltype(instruction.operand)>> bits;
  bits.fill(choose_type(decoding, instruction, handlers));
  take_operands(decoding, instruction, std::span(bits).first(operands));
}

}  // namespace flashjit::emulator
