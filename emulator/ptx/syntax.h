// SPDX-License-Identifier: Apache-2.0
// PTX text as the parser leaves it: statements with operands whose registers are numbered and whose labels are found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/emulator.h"

namespace flashjit::emulator {

// Where 32 lanes of 4 bytes lie: >= 0 in the registers of a warp, < 0 in the constants of the kernel (~slot). A 64-bit
// register takes two neighbouring slots. Predicates are numbered apart.
using Slot = std::int32_t;
inline constexpr Slot kNoSlot = INT32_MAX;

enum class OperandKind {
  reg,  // or a special register, or the address of a symbol
  predicate,
  immediate,
  address,  // [base + offset], and for tensors [base, {coordinates}]
  vector,   // {a, b, ...}, and a|b
  label,
  sink,  // _
};

struct Operand {
  OperandKind kind = OperandKind::sink;
  bool negated = false;           // !p
  int bits = 0;                   // of a register: 16, 32 or 64
  Slot slot = kNoSlot;            // reg, predicate; base of an address, none for an absolute one
  std::uint64_t value = 0;        // immediate: its bits; address: the offset; label: index of the instruction
  std::vector<Operand> elements;  // of a vector, or the coordinates of an address
  std::string text;               // for messages
};

struct Statement {
  std::string opcode;    // whole: "cvt.rn.bf16x2.f32"
  Slot guard = kNoSlot;  // a predicate
  bool guard_negated = false;
  std::vector<Operand> operands;
  int ptx_line = 0;
  int location = -1;  // index into Module::locations
};

// One .loc directive.
struct Location {
  int file = 0, line = 0;
  std::string function;                    // named by the directive, where inlined
  int file_of_call = 0, line_of_call = 0;  // inlined_at; 0 when it is not
};

enum class Special {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge,
  cluster_ctarank,
  cluster_nctarank,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  dynamic_smem_size,
  total_smem_size,
};

enum class Space { parameter, shared, global };

// What a warp finds in its registers before the first instruction.
struct SpecialRegister {
  Special what;
  Slot slot;  // 32 bits
};
struct SymbolAddress {
  Space space;
  std::uint64_t offset;  // in the parameters, the block's shared variables, or the module's globals
  Slot slot;             // 64 bits
  Slot slot_32;
};

struct Kernel {
  std::string name;
  std::size_t parameter_bytes = 0;
  Extent most_threads;          // .maxntid or .reqntid; 0, 0, 0 when there is none
  Extent cluster;               // .reqnctapercluster
  unsigned least_blocks = 0;    // .minnctapersm
  unsigned most_registers = 0;  // .maxnreg
  std::uint64_t static_shared_bytes = 0;
  std::vector<Statement> statements;
  std::vector<SpecialRegister> specials;
  std::vector<SymbolAddress> symbols;
  Slot slots = 0;  // registers of a warp
  Slot predicates = 0;
};

struct Module {
  std::string target;              // "sm_90a"
  std::vector<std::string> files;  // by number of .file
  std::vector<Location> locations;
  std::vector<std::byte> globals;  // initial contents
  std::vector<Kernel> kernels;
};

// Throws ParseError.
Module parse(const std::string& ptx);

Place place_of(const Module& module, int ptx_line, int location);

}  // namespace flashjit::emulator
