// SPDX-License-Identifier: Apache-2.0
// PTX ISA 9.7.12 "Control Flow Instructions", 9.7.19 "Miscellaneous Instructions", and griddepcontrol.
#include "emulator/machine/lanes.h"

namespace flashjit::emulator {
namespace {

Outcome run_bra(Warp& warp, const Instruction& instruction, LaneMask active) {
  return warp.branch(static_cast<std::uint32_t>(instruction.immediate), active);
}

// PTX ISA 9.7.12 bra. Whether a branch that is said to be uniform is so makes no difference to what it does.
void decode_bra(Decoding& decoding, Instruction& instruction) {
  decoding.take("uni");
  require_operands(decoding, 1);
  if (decoding.operand(0).kind != OperandKind::label) decoding.fail("the target must be a label");
  instruction.immediate = static_cast<std::int64_t>(decoding.operand(0).value);
  instruction.run = run_bra;
  instruction.op_class = OpClass::control;
}

Outcome run_exit(Warp& warp, const Instruction&, LaneMask active) { return warp.exit(active); }

// PTX ISA 9.7.12 ret, exit: a kernel has no caller, so both end the thread.
void decode_exit(Decoding& decoding, Instruction& instruction) {
  decoding.take("uni");
  require_operands(decoding, 0);
  instruction.run = run_exit;
  instruction.op_class = OpClass::control;
}

Outcome run_trap(Warp& warp, const Instruction&, LaneMask active) {
  warp.report(FindingKind::bad_operand, [] { return std::string("the kernel has trapped"); });
  return warp.exit(active);
}

// PTX ISA 9.7.19 trap
void decode_trap(Decoding& decoding, Instruction& instruction) {
  require_operands(decoding, 0);
  instruction.run = run_trap;
  instruction.op_class = OpClass::control;
}

Outcome run_nothing(Warp&, const Instruction&, LaneMask) { return Outcome::next; }

// PTX ISA 9.7.19 brkpt: there is no debugger.
void decode_brkpt(Decoding& decoding, Instruction& instruction) {
  require_operands(decoding, 0);
  instruction.run = run_nothing;
}

Outcome run_nanosleep(Warp& warp, const Instruction& instruction, LaneMask active) {
  warp.read<std::uint32_t>(instruction.operand[0], active);
  return Outcome::next;
}

// PTX ISA 9.7.19 nanosleep: any duration from 0 on is allowed.
void decode_nanosleep(Decoding& decoding, Instruction& instruction) {
  choose_type(decoding, instruction, {{"u32", 32, run_nanosleep}});
  require_operands(decoding, 1);
  instruction.operand[0] = decoding.source(0, 32);
}

// PTX ISA 9.7.13 griddepcontrol: no other grid runs beside the launch.
void decode_griddepcontrol(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("wait") && !decoding.take("launch_dependents"))
    decoding.fail("one of .wait, .launch_dependents is missing");
  require_operands(decoding, 0);
  instruction.run = run_nothing;
}

}  // namespace

void add_control_operations(OperationTable& table) {
  table["bra"] = decode_bra;
  table["ret"] = decode_exit;
  table["exit"] = decode_exit;
  table["trap"] = decode_trap;
  table["brkpt"] = decode_brkpt;
  table["nanosleep"] = decode_nanosleep;
  table["griddepcontrol"] = decode_griddepcontrol;
}

}  // namespace flashjit::emulator
