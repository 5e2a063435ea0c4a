// SPDX-License-Identifier: Apache-2.0
// wgmma (PTX ISA 9.7.15, "Asynchronous warpgroup level matrix multiply-accumulate instructions"). What the four warps
// of a warpgroup do together stands in warpgroup.h.
#include <fmt/format.h>

#include <charconv>

#include "emulator/machine/block_state.h"
#include "emulator/machine/participation.h"
#include "emulator/machine/warpgroup.h"

namespace flashjit::emulator {
namespace {

constexpr int kRowsOfGroup = 64;  // M of every shape
constexpr int kMostColumns = 256;
constexpr int kBytesOfDepth = 32;  // of a row of A: K is 16 elements of 2 bytes, 8 of 4, 32 of 1
constexpr std::size_t kRegistersOfA = 4;

// Null after a report: a warpgroup is four whole warps, the first of them a multiple of four.
Warpgroup* warpgroup_of(Warp& warp, LaneMask active) {
  if (!whole_warp_takes_part(warp, active)) return nullptr;
  Block& block = warp.block();
  const auto group = static_cast<std::size_t>(warp.index() / kWarpsOfGroup);
  if ((group + 1) * kWarpsOfGroup <= block.warps().size()) return &block.state().warpgroups[group];
  warp.report(FindingKind::unequal_participation, [&] {
    return fmt::format("a warpgroup must have {} warps, that of warp {} has {}", kWarpsOfGroup, warp.index(),
                       block.warps().size() % kWarpsOfGroup);
  });
  return nullptr;
}

// --- Handlers --------------------------------------------------------------------------------------------------------

Outcome run_mma_async(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (Warpgroup* const group = warpgroup_of(warp, active)) group->issue(warp, instruction);
  return Outcome::next;
}

Outcome run_fence(Warp& warp, const Instruction&, LaneMask active) {
  if (warpgroup_of(warp, active)) warp.fence_registers();
  return Outcome::next;
}

Outcome run_commit_group(Warp& warp, const Instruction&, LaneMask active) {
  if (Warpgroup* const group = warpgroup_of(warp, active)) group->commit_group(warp);
  return Outcome::next;
}

Outcome run_wait_group(Warp& warp, const Instruction& instruction, LaneMask active) {
  Warpgroup* const group = warpgroup_of(warp, active);
  return group ? group->wait_group(warp, instruction) : Outcome::next;
}

// --- Decoding --------------------------------------------------------------------------------------------------------

// "m64n128k16"
void take_shape(Decoding& decoding, Wgmma& wgmma) {
  const std::string_view shape = decoding.take_any();
  const char* at = shape.data();
  const char* const end = at + shape.size();
  const auto number_after = [&](char letter) {
    int number = 0;
    if (at == end || *at != letter) decoding.fail(fmt::format("unknown shape '.{}'", shape));
    at = std::from_chars(at + 1, end, number).ptr;
    return number;
  };
  const int rows = number_after('m');
  wgmma.columns = number_after('n');
  wgmma.depth = number_after('k');
  if (at != end || rows != kRowsOfGroup || wgmma.columns % kPanelColumns != 0 || wgmma.columns < kPanelColumns ||
      wgmma.columns > kMostColumns)
    decoding.fail(fmt::format("unknown shape '.{}'", shape));
}

// .f32.bf16.bf16 and its like
void take_types(Decoding& decoding, Wgmma& wgmma) {
  wgmma.types = take_matrix_types(decoding);
  if (is_integer(wgmma.types.a)) decoding.fail("integers are not supported");
  if (wgmma.depth * bytes_of(wgmma.types.a) != kBytesOfDepth) decoding.fail("K does not fit the type");
}

void take_scale_d(const Operand& operand, Decoding& decoding, Wgmma& wgmma) {
  if (operand.kind == OperandKind::immediate)
    wgmma.accumulates_always = operand.value != 0;
  else
    wgmma.accumulates = decoding.predicate(operand);
}

// 1 or -1
bool take_negation(Decoding& decoding, std::size_t i) {
  const auto scale = static_cast<std::int32_t>(decoding.immediate(i));
  if (scale != 1 && scale != -1) decoding.fail(fmt::format("operand {} must be 1 or -1, was {}", i + 1, scale));
  return scale == -1;
}

Major take_major(Decoding& decoding, std::size_t i) {
  const std::uint64_t transposed = decoding.immediate(i);
  if (transposed > 1) decoding.fail(fmt::format("operand {} must be 0 or 1, was {}", i + 1, transposed));
  return transposed == 1 ? Major::mn : Major::k;
}

// wgmma.mma_async.sync.aligned.shape.dtype.atype.btype d, a, b, scale-d, imm-scale-a, imm-scale-b
//                                                      {, imm-trans-a, imm-trans-b}    (PTX ISA 9.7.15.5.2)
void decode_mma_async(Decoding& decoding, Instruction& instruction) {
  auto wgmma = std::make_unique<Wgmma>();
  take_shape(decoding, *wgmma);
  take_types(decoding, *wgmma);
  const bool a_in_registers = decoding.operand(1).kind == OperandKind::vector;
  wgmma->sums = decoding.destinations(0, 32);
  const int panels = wgmma->columns / kPanelColumns;
  const auto sums = static_cast<std::size_t>(panels * registers_of_panel(wgmma->types.accumulator));
  if (wgmma->sums.size() != sums)
    decoding.fail(fmt::format("there must be {} accumulators, are {}", sums, wgmma->sums.size()));
  if (a_in_registers)
    wgmma->a = decoding.sources(1, 32);
  else
    wgmma->a_descriptor = decoding.source(1, 64);
  if (a_in_registers && wgmma->a.size() != kRegistersOfA)
    decoding.fail(fmt::format("A must have {} registers, has {}", kRegistersOfA, wgmma->a.size()));
  wgmma->b_descriptor = decoding.source(2, 64);
  take_scale_d(decoding.operand(3), decoding, *wgmma);
  wgmma->negates = take_negation(decoding, 4) != take_negation(decoding, 5);
  std::size_t operands = 6;
  if (bytes_of(wgmma->types.a) == 2) {
    if (!a_in_registers) wgmma->a_major = take_major(decoding, operands++);
    wgmma->b_major = take_major(decoding, operands++);
  }
  if (decoding.operand_count() != operands)
    decoding.fail(fmt::format("there must be {} operands, are {}", operands, decoding.operand_count()));
  instruction.run = run_mma_async;
  instruction.op_class = OpClass::wgmma;
  instruction.detail = std::move(wgmma);
}

// wgmma.fence (PTX ISA 9.7.15.7.1), commit_group (.2), wait_group (.3)
void decode_wgmma(Decoding& decoding, Instruction& instruction) {
  const std::string_view what = decoding.take_any();
  if (!decoding.take("sync") || !decoding.take("aligned")) decoding.fail("'.sync.aligned' is missing");
  instruction.aligned = true;
  instruction.op_class = OpClass::fence;
  if (what == "mma_async") {
    decode_mma_async(decoding, instruction);
  } else if (what == "fence") {
    instruction.run = run_fence;
  } else if (what == "commit_group") {
    instruction.run = run_commit_group;
  } else if (what == "wait_group") {
    instruction.run = run_wait_group;
    instruction.immediate = static_cast<std::int64_t>(decoding.immediate(0));
  } else {
    decoding.fail(fmt::format("unknown operation '.{}'", what));
  }
}

}  // namespace

void add_wgmma_operations(OperationTable& table) { table["wgmma"] = decode_wgmma; }

}  // namespace flashjit::emulator
