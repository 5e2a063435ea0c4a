// SPDX-License-Identifier: Apache-2.0
// Matrices of a warp: ldmatrix, stmatrix, movmatrix and mma.sync (PTX ISA 9.7.14, "Warp level matrix instructions").
#include <fmt/format.h>

#include <array>
#include <vector>

#include "emulator/machine/fragments.h"
#include "emulator/machine/participation.h"
#include "emulator/machine/shared_address.h"
#include "emulator/memory/banks.h"

namespace flashjit::emulator {
namespace {

// --- 8 x 8 matrices of 16 bits ---------------------------------------------------------------------------------------

constexpr int kSide = 8;
constexpr int kRowBytes = kSide * 2;
constexpr int kMostMatrices = 4;

// Each lane holds two neighbouring elements of a row: four lanes a row.
struct Matrix8x8 {
  std::uint16_t at[kSide][kSide] = {};

  void transpose() {
    for (int row = 0; row < kSide; ++row)
      for (int column = 0; column < row; ++column) std::swap(at[row][column], at[column][row]);
  }
  void from_lanes(const std::uint32_t* lanes) { std::memcpy(at, lanes, sizeof(at)); }
  void to_lanes(std::uint32_t (&lanes)[kLanes]) const { std::memcpy(lanes, at, sizeof(at)); }
};
static_assert(sizeof(Matrix8x8) == kLanes * sizeof(std::uint32_t));

struct MatrixMove : Detail {
  std::vector<Slot> registers;  // one for each matrix
  Decoding::Address address;
  SharedSpace space = SharedSpace::generic;
  bool transposed = false;
};

// Where the rows lie. Row r of matrix m is at the address of lane 8 m + r; what has no block has been reported.
using RowPlaces = std::array<Cluster::SharedPlace, kLanes>;
RowPlaces find_rows(Warp& warp, const MatrixMove& move) {
  const int rows = kSide * static_cast<int>(move.registers.size());
  const LaneMask lanes = rows == kLanes ? kAllLanes : (LaneMask{1} << rows) - 1;
  const LaneAddresses addresses = read_addresses(warp, move.address, lanes);
  RowPlaces places;
  std::array<std::uint32_t, kLanes> offsets{};
  for_each_lane(lanes, [&](int lane) {
    const auto at = static_cast<std::size_t>(lane);
    places[at] = find_aligned_shared(warp, move.space, addresses.lane[lane], kRowBytes, kRowBytes);
    offsets[at] = places[at].offset;
  });
  warp.count_bank_conflicts(static_cast<std::uint64_t>(bank_conflicts(offsets.data(), rows, kRowBytes)));
  return places;
}

// PTX ISA 9.7.14.5.15 ldmatrix. A row that cannot be read is zeros.
Outcome run_ldmatrix(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (!whole_warp_takes_part(warp, active)) return Outcome::next;
  const auto& move = instruction.details<MatrixMove>();
  const RowPlaces places = find_rows(warp, move);
  for (std::size_t m = 0; m < move.registers.size(); ++m) {
    Matrix8x8 matrix;
    for (std::size_t row = 0; row < kSide; ++row) {
      const auto [block, offset] = places[m * kSide + row];
      if (!block) continue;
      block->shared().record_read(warp.accessor(), offset, kRowBytes);
      std::memcpy(matrix.at[row], block->shared().at(offset), kRowBytes);
    }
    if (move.transposed) matrix.transpose();
    std::uint32_t lanes[kLanes];
    matrix.to_lanes(lanes);
    warp.write(move.registers[m], lanes, active);
  }
  return Outcome::next;
}

// PTX ISA 9.7.14.5.16 stmatrix
Outcome run_stmatrix(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (!whole_warp_takes_part(warp, active)) return Outcome::next;
  const auto& move = instruction.details<MatrixMove>();
  const RowPlaces places = find_rows(warp, move);
  for (std::size_t m = 0; m < move.registers.size(); ++m) {
    Matrix8x8 matrix;
    matrix.from_lanes(warp.read<std::uint32_t>(move.registers[m], active));
    if (move.transposed) matrix.transpose();
    for (std::size_t row = 0; row < kSide; ++row) {
      const auto [block, offset] = places[m * kSide + row];
      if (!block) continue;
      block->shared().record_write(warp.accessor(), offset, kRowBytes);
      std::memcpy(block->shared().at(offset), matrix.at[row], kRowBytes);
    }
  }
  return Outcome::next;
}

// PTX ISA 9.7.14.5.17 movmatrix
Outcome run_movmatrix(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (!whole_warp_takes_part(warp, active)) return Outcome::next;
  Matrix8x8 matrix;
  matrix.from_lanes(warp.read<std::uint32_t>(instruction.operand[1], active));
  matrix.transpose();
  std::uint32_t lanes[kLanes];
  matrix.to_lanes(lanes);
  warp.write(instruction.operand[0], lanes, active);
  return Outcome::next;
}

void take_aligned(Decoding& decoding, Instruction& instruction) {
  if (!decoding.take("sync") || !decoding.take("aligned")) decoding.fail("'.sync.aligned' is missing");
  instruction.aligned = true;
}

// ldmatrix.sync.aligned.m8n8.x4{.trans}{.shared}.b16 {r, ...}, [p], and stmatrix with its operands the other way round
std::unique_ptr<MatrixMove> take_matrix_move(Decoding& decoding, std::size_t address, std::size_t registers) {
  auto move = std::make_unique<MatrixMove>();
  if (!decoding.take("m8n8")) decoding.fail("the shape must be '.m8n8'");
  const std::size_t count = decoding.take("x1") ? 1 : decoding.take("x2") ? 2 : decoding.take("x4") ? kMostMatrices : 0;
  move->transposed = decoding.take("trans");
  take_shared_space(decoding, move->space);
  if (!decoding.take("b16")) decoding.fail("the type must be '.b16'");
  move->address = decoding.address(address);
  move->registers = address < registers ? decoding.sources(registers, 32) : decoding.destinations(registers, 32);
  if (move->registers.size() != count) decoding.fail("the number of registers must be that of the matrices");
  return move;
}

void decode_ldmatrix(Decoding& decoding, Instruction& instruction) {
  take_aligned(decoding, instruction);
  instruction.op_class = OpClass::shared;
  instruction.run = run_ldmatrix;
  instruction.detail = take_matrix_move(decoding, 1, 0);
}

void decode_stmatrix(Decoding& decoding, Instruction& instruction) {
  take_aligned(decoding, instruction);
  instruction.op_class = OpClass::shared;
  instruction.run = run_stmatrix;
  instruction.detail = take_matrix_move(decoding, 0, 1);
}

void decode_movmatrix(Decoding& decoding, Instruction& instruction) {
  take_aligned(decoding, instruction);
  if (!decoding.take("m8n8") || !decoding.take("trans") || !decoding.take("b16"))
    decoding.fail("must be '.m8n8.trans.b16'");
  instruction.op_class = OpClass::warp;
  instruction.run = run_movmatrix;
  instruction.operand[0] = decoding.destination(0, 32);
  instruction.operand[1] = decoding.source(1, 32);
}

// --- mma.sync --------------------------------------------------------------------------------------------------------

constexpr int kMostRegisters = 4;  // of A and of the accumulators; B has up to 2

struct RegisterList {
  std::array<Slot, kMostRegisters> slot{};
  int count = 0;

  std::array<RegisterBits, kMostRegisters> read(Warp& warp) const {
    std::array<RegisterBits, kMostRegisters> bits{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      bits[i] = warp.read<std::uint32_t>(slot[i], kAllLanes);
    return bits;
  }
};

struct Mma : Detail {
  MatrixTypes types;
  bool saturates = false;
  bool is_aligned = false;  // products are, to the largest of 16
  int depth = 0;
  RegisterList d, a, b, c;
};

// Whether tensor cores take 8-bit floats from an mma.sync. For other targets ptxas makes f16 of them, whose products
// are exact (NVRTC 13.0: HMMA behind conversions for sm_90a and sm_100a, QMMA for sm_89 and sm_120a).
bool has_mma_of_8_bits(std::string_view target) { return target.starts_with("sm_89") || target.starts_with("sm_12"); }

// As sm_89 has it, which adds 16 products of 8-bit floats at once; sm_120 keeps more bits of an mma.sync (Xie et al.,
// "MMA-Sim", arXiv:2511.10909).
void multiply_add_floats(const Mma& mma, const RowTile& rows, const ColumnPanel& columns, SumPanel& sums) {
  constexpr int kAtOnce = 16;
  if (!mma.is_aligned) return multiply_add(rows, columns, mma.depth, sums);
  for (int first = 0; first < mma.depth; first += kAtOnce)
    multiply_add_aligned(mma.types, rows, columns, first, first + kAtOnce, sums);
}

// PTX ISA 9.7.14.5.14 mma
Outcome run_mma(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (!whole_warp_takes_part(warp, active)) return Outcome::next;
  const auto& mma = instruction.details<Mma>();
  RowTile rows;
  ColumnPanel columns;
  SumPanel sums = {};
  gather_rows(mma.types.a, mma.a.read(warp).data(), mma.a.count, rows);
  gather_columns(mma.types.b, mma.b.read(warp).data(), mma.b.count, columns);
  const auto accumulators = mma.c.read(warp);
  std::uint32_t results[kMostRegisters][kLanes];
  std::uint32_t* const registers[kMostRegisters] = {results[0], results[1], results[2], results[3]};
  if (is_integer(mma.types.a)) {
    multiply_add(rows, columns, mma.depth, sums);
    add_integer_sums(sums, accumulators.data(), mma.saturates, registers);
  } else {
    gather_sums(mma.types.accumulator, accumulators.data(), sums);
    multiply_add_floats(mma, rows, columns, sums);
    scatter_sums(mma.types.accumulator, sums, registers);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(mma.d.count); ++i) warp.write(mma.d.slot[i], results[i], active);
  return Outcome::next;
}

RegisterList list_of(const Decoding& decoding, const std::vector<Slot>& slots, int count, const char* name) {
  if (slots.size() != static_cast<std::size_t>(count))
    decoding.fail(fmt::format("{} must have {} registers, has {}", name, count, slots.size()));
  RegisterList list;
  std::copy(slots.begin(), slots.end(), list.slot.begin());
  list.count = count;
  return list;
}

// .m16n8k16.row.col.f32.bf16.bf16.f32 and its like. Returns how many registers B has; A has twice as many.
int take_shape_and_types(Decoding& decoding, Mma& mma) {
  const std::string_view shape = decoding.take_any();
  if (!decoding.take("row") || !decoding.take("col")) decoding.fail("'.row.col' is missing");
  mma.saturates = decoding.take("satfinite");
  mma.types = take_matrix_types(decoding);
  if (mma.saturates && !is_integer(mma.types.a)) decoding.fail("only integers have '.satfinite'");
  if (take_accumulator(decoding) != mma.types.accumulator) decoding.fail("C and D must have the same type");
  constexpr int kBytesOfRegister = 16;  // of a row of A or a column of B, in the registers of four lanes
  for (const int registers : {1, 2}) {
    mma.depth = registers * kBytesOfRegister / bytes_of(mma.types.a);
    if (shape == fmt::format("m16n8k{}", mma.depth)) return registers;
  }
  decoding.fail(fmt::format("unknown shape '.{}' for the type", shape));
}

void decode_mma(Decoding& decoding, Instruction& instruction) {
  take_aligned(decoding, instruction);
  auto mma = std::make_unique<Mma>();
  const int registers_of_b = take_shape_and_types(decoding, *mma);
  mma->is_aligned = is_8_bit_float(mma->types.a) && has_mma_of_8_bits(decoding.module().target);
  const int accumulators = registers_of_panel(mma->types.accumulator);
  mma->d = list_of(decoding, decoding.destinations(0, 32), accumulators, "D");
  mma->a = list_of(decoding, decoding.sources(1, 32), 2 * registers_of_b, "A");
  mma->b = list_of(decoding, decoding.sources(2, 32), registers_of_b, "B");
  mma->c = list_of(decoding, decoding.sources(3, 32), accumulators, "C");
  instruction.op_class = OpClass::mma;
  instruction.run = run_mma;
  instruction.detail = std::move(mma);
}

}  // namespace

void add_matrix_operations(OperationTable& table) {
  table["ldmatrix"] = decode_ldmatrix;
  table["stmatrix"] = decode_stmatrix;
  table["movmatrix"] = decode_movmatrix;
  table["mma"] = decode_mma;
}

}  // namespace flashjit::emulator
