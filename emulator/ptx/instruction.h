// SPDX-License-Identifier: Apache-2.0
// Instructions that a warp can run, and how a statement becomes one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/ptx/syntax.h"

namespace flashjit::emulator {

class Warp;
using LaneMask = std::uint32_t;
inline constexpr int kLanes = 32;
inline constexpr LaneMask kAllLanes = 0xffffffff;

enum class Outcome {
  next,     // go on with the next instruction
  jumped,   // the instruction has set where to go on
  blocked,  // it could not run: it is run again, from its start, after something has happened
  exited,   // the active lanes have ended
};

// For counters.
enum class OpClass {
  integer,
  floating,
  convert,
  predicate,
  move,
  control,
  warp,
  barrier,
  mbarrier,
  shared,
  global,
  parameter,
  copy,
  mma,
  wgmma,
  fence,
  other
};
const char* to_string(OpClass op_class) noexcept;

// What an operation keeps besides slots.
struct Detail {
  virtual ~Detail() = default;
};

struct Instruction;
// active: lanes that are here and whose guard holds, never none.
using Handler = Outcome (*)(Warp& warp, const Instruction& instruction, LaneMask active);

struct Instruction {
  Handler run = nullptr;
  std::array<Slot, 5> operand{kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot};
  Slot guard = kNoSlot;
  bool guard_negated = false;
  bool aligned = false;  // all lanes of the warp that have not ended must be here together
  OpClass op_class = OpClass::other;
  std::int64_t immediate = 0;
  std::unique_ptr<const Detail> detail;
  std::uint32_t statement = 0;  // its index, and the instruction's own

  template <class D>
  const D& details() const {
    return static_cast<const D&>(*detail);
  }
};

struct alignas(128) Lanes {
  std::uint32_t lane[kLanes];
};

// A kernel ready to run.
struct Code {
  const Module* module = nullptr;
  const Kernel* kernel = nullptr;
  std::vector<Instruction> instructions;
  std::vector<Lanes> constants;
};

// A statement that is being decoded: gives out its modifiers and operands, and refuses what is left over or does not
// fit.
class Decoding {
 public:
  Decoding(const Module& module, const Statement& statement, Code& code);

  const Statement& statement() const { return statement_; }
  const Module& module() const { return module_; }
  std::string_view name() const { return parts_.front(); }  // "cvt"

  // --- Modifiers, in their order: "a.b::c.d" has "b::c" and "d"
  // True, and the modifier is taken, if it is the next one.
  bool take(std::string_view modifier);
  // Takes the next one, whichever it is. Fails when there is none.
  std::string_view take_any();
  std::string_view peek() const { return next_ < parts_.size() ? parts_[next_] : std::string_view(); }
  std::string_view last() const { return parts_.back(); }

  // --- Operands
  std::size_t operand_count() const { return statement_.operands.size(); }
  const Operand& operand(std::size_t i) const;
  Slot source(std::size_t i, int bits);  // a register, or an immediate that becomes a constant
  Slot source(const Operand& operand, int bits);
  Slot destination(std::size_t i, int bits) const;
  Slot destination(const Operand& operand, int bits) const;
  Slot predicate(std::size_t i) const;  // fails for !p
  Slot predicate(const Operand& operand) const;
  // Of a destination that may be _: then kNoSlot.
  Slot optional_destination(const Operand& operand, int bits) const;
  Slot optional_predicate(const Operand& operand) const;
  std::uint64_t immediate(std::size_t i) const;
  std::vector<Slot> sources(std::size_t i, int bits);  // of a vector, or of one register
  std::vector<Slot> destinations(std::size_t i, int bits) const;
  std::vector<Slot> optional_destinations(std::size_t i, int bits) const;
  struct Address {
    Slot base = kNoSlot;  // of `bits`
    int bits = 64;
    std::int64_t offset = 0;
  };
  Address address(std::size_t i);
  Slot constant(std::uint64_t value, int bits);

  // ParseError: "<why> in '<opcode>'" with the line.
  [[noreturn]] void fail(const std::string& why) const;
  // Fails when a modifier has not been taken.
  void finish() const;

 private:
  const Module& module_;
  const Statement& statement_;
  Code& code_;
  std::vector<std::string_view> parts_;
  std::size_t next_ = 1;
};

// Fills run, operands, op_class, aligned, immediate, detail.
using Decoder = void (*)(Decoding& decoding, Instruction& instruction);
using OperationTable = std::map<std::string_view, Decoder>;  // by the opcode's first part

// Each file operations_*.cpp adds what it has.
void add_integer_operations(OperationTable& table);
void add_float_operations(OperationTable& table);
void add_convert_operations(OperationTable& table);
void add_control_operations(OperationTable& table);
void add_memory_operations(OperationTable& table);
void add_warp_operations(OperationTable& table);
void add_matrix_operations(OperationTable& table);
void add_wgmma_operations(OperationTable& table);
void add_barrier_operations(OperationTable& table);
void add_copy_operations(OperationTable& table);

// Throws ParseError.
Code decode(const Module& module, const Kernel& kernel);

}  // namespace flashjit::emulator
