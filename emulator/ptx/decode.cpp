// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {
namespace {

// "a.b::c.d" to "a", "b::c", "d".
std::vector<std::string_view> split_opcode(std::string_view opcode) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = opcode.find('.');
    parts.push_back(opcode.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    opcode.remove_prefix(dot + 1);
  }
}

const OperationTable& operations() {
  static const OperationTable table = [] {
    OperationTable all;
    for (const auto add : {add_integer_operations, add_float_operations, add_convert_operations, add_control_operations,
                           add_memory_operations, add_warp_operations, add_matrix_operations, add_wgmma_operations,
                           add_barrier_operations, add_copy_operations})
      add(all);
    return all;
  }();
  return table;
}

Instruction decode_statement(const Module& module, const Statement& statement, Code& code) {
  Decoding decoding(module, statement, code);
  const auto operation = operations().find(decoding.name());
  if (operation == operations().end()) decoding.fail("unknown opcode");
  Instruction instruction;
  instruction.guard = statement.guard;
  instruction.guard_negated = statement.guard_negated;
  operation->second(decoding, instruction);
  decoding.finish();
  return instruction;
}

}  // namespace

const char* to_string(OpClass op_class) noexcept {
  switch (op_class) {
    case OpClass::integer:
      return "integer";
    case OpClass::floating:
      return "float";
    case OpClass::convert:
      return "convert";
    case OpClass::predicate:
      return "predicate";
    case OpClass::move:
      return "move";
    case OpClass::control:
      return "control";
    case OpClass::warp:
      return "warp";
    case OpClass::barrier:
      return "barrier";
    case OpClass::mbarrier:
      return "mbarrier";
    case OpClass::shared:
      return "shared";
    case OpClass::global:
      return "global";
    case OpClass::parameter:
      return "parameter";
    case OpClass::copy:
      return "copy";
    case OpClass::mma:
      return "mma";
    case OpClass::wgmma:
      return "wgmma";
    case OpClass::fence:
      return "fence";
    case OpClass::other:
      break;
  }
  return "other";
}

Decoding::Decoding(const Module& module, const Statement& statement, Code& code)
    : module_(module), statement_(statement), code_(code), parts_(split_opcode(statement.opcode)) {}

bool Decoding::take(std::string_view modifier) {
  if (peek() != modifier || next_ >= parts_.size()) return false;
  ++next_;
  return true;
}

std::string_view Decoding::take_any() {
  if (next_ >= parts_.size()) fail("a modifier is missing");
  return parts_[next_++];
}

const Operand& Decoding::operand(std::size_t i) const {
  if (i >= operand_count()) fail(fmt::format("operand {} is missing", i + 1));
  return statement_.operands[i];
}

Slot Decoding::constant(std::uint64_t value, int bits) {
  const Slot slot = ~static_cast<Slot>(code_.constants.size());
  code_.constants.emplace_back();
  if (bits == 64) code_.constants.emplace_back();
  Lanes* const lanes = &code_.constants[static_cast<std::size_t>(~slot)];
  if (bits == 64)
    std::fill_n(reinterpret_cast<std::uint64_t*>(lanes->lane), kLanes, value);  // in both of its slots
  else
    std::fill_n(lanes->lane, kLanes, static_cast<std::uint32_t>(bits == 16 ? value & 0xffff : value));
  return slot;
}

Slot Decoding::source(std::size_t i, int bits) { return source(operand(i), bits); }

Slot Decoding::source(const Operand& operand, int bits) {
  if (operand.kind == OperandKind::immediate) return constant(operand.value, bits);
  if (operand.kind != OperandKind::reg) fail(fmt::format("'{}' must be a register or a number", operand.text));
  if (operand.bits == bits) return operand.slot;
  // The address of a symbol has a narrow form beside it.
  for (const SymbolAddress& symbol : code_.kernel->symbols)
    if (bits == 32 && symbol.slot == operand.slot) return symbol.slot_32;
  fail(fmt::format("'{}' must have {} bits, has {}", operand.text, bits, operand.bits));
}

Slot Decoding::destination(std::size_t i, int bits) const { return destination(operand(i), bits); }

Slot Decoding::destination(const Operand& operand, int bits) const {
  if (operand.kind != OperandKind::reg) fail(fmt::format("the destination must be a register, was '{}'", operand.text));
  if (operand.bits != bits) fail(fmt::format("'{}' must have {} bits, has {}", operand.text, bits, operand.bits));
  return operand.slot;
}

Slot Decoding::predicate(std::size_t i) const { return predicate(operand(i)); }

Slot Decoding::predicate(const Operand& operand) const {
  if (operand.kind != OperandKind::predicate) fail(fmt::format("'{}' must be a predicate", operand.text));
  if (operand.negated) fail(fmt::format("'!{}' is not supported here", operand.text));
  return operand.slot;
}

Slot Decoding::optional_destination(const Operand& operand, int bits) const {
  return operand.kind == OperandKind::sink ? kNoSlot : destination(operand, bits);
}

Slot Decoding::optional_predicate(const Operand& operand) const {
  return operand.kind == OperandKind::sink ? kNoSlot : predicate(operand);
}

std::uint64_t Decoding::immediate(std::size_t i) const {
  if (operand(i).kind != OperandKind::immediate) fail(fmt::format("operand {} must be a number", i + 1));
  return operand(i).value;
}

std::vector<Slot> Decoding::sources(std::size_t i, int bits) {
  if (operand(i).kind != OperandKind::vector) return {source(i, bits)};
  std::vector<Slot> slots;
  for (const Operand& element : operand(i).elements) slots.push_back(source(element, bits));
  return slots;
}

std::vector<Slot> Decoding::destinations(std::size_t i, int bits) const {
  if (operand(i).kind != OperandKind::vector) return {destination(i, bits)};
  std::vector<Slot> slots;
  for (const Operand& element : operand(i).elements) slots.push_back(destination(element, bits));
  return slots;
}

std::vector<Slot> Decoding::optional_destinations(std::size_t i, int bits) const {
  if (operand(i).kind != OperandKind::vector) return {optional_destination(operand(i), bits)};
  std::vector<Slot> slots;
  for (const Operand& element : operand(i).elements) slots.push_back(optional_destination(element, bits));
  return slots;
}

Decoding::Address Decoding::address(std::size_t i) {
  const Operand& from = operand(i);
  if (from.kind != OperandKind::address) fail(fmt::format("operand {} must be an address", i + 1));
  Address address;
  address.base = from.slot;
  address.bits = from.bits;
  address.offset = static_cast<std::int64_t>(from.value);
  return address;
}

void Decoding::fail(const std::string& why) const {
  const Place place = place_of(module_, statement_.ptx_line, statement_.location);
  const std::string source = place.file.empty() ? "" : fmt::format(" (from {}:{})", place.file, place.line);
  throw ParseError(fmt::format("PTX line {}{}: {} in '{}'", place.ptx_line, source, why, statement_.opcode), place);
}

void Decoding::finish() const {
  if (next_ < parts_.size()) fail(fmt::format("unknown modifier '.{}'", parts_[next_]));
}

Code decode(const Module& module, const Kernel& kernel) {
  Code code;
  code.module = &module;
  code.kernel = &kernel;
  code.instructions.reserve(kernel.statements.size());
  for (const Statement& statement : kernel.statements) {
    code.instructions.push_back(decode_statement(module, statement, code));
    code.instructions.back().statement = static_cast<std::uint32_t>(code.instructions.size() - 1);
  }
  return code;
}

}  // namespace flashjit::emulator
