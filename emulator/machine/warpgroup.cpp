// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/warpgroup.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashjit::emulator {
namespace {

// A value that all lanes must agree on: that of lane 0, after a report where they do not.
template <class T>
T uniform(Warp& warp, const T* values, const char* name) {
  if (std::any_of(values, values + kLanes, [&](T value) { return value != values[0]; }))
    warp.report(FindingKind::unequal_participation,
                [&] { return fmt::format("{} must be the same in all lanes of the warp", name); });
  return values[0];
}

// Chunks of the lines and chunks from first to end, ascending.
struct ChunkRange {
  int first_line, end_line, first_chunk, end_chunk;
};
std::vector<std::uint32_t> chunks_of(const MatrixLayout& layout, const ChunkRange& range) {
  std::vector<std::uint32_t> chunks;
  for (int line = range.first_line; line < range.end_line; ++line)
    for (int chunk = range.first_chunk; chunk < range.end_chunk; ++chunk)
      chunks.push_back(layout.chunk(static_cast<std::uint32_t>(line), static_cast<std::uint32_t>(chunk)));
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

int chunks_in(int elements, Element element) { return elements * bytes_of(element) / static_cast<int>(kMatrixChunk); }

// What a warp reads of A, its own 16 rows, and what all read of B.
ChunkRange range_of_a(const Wgmma& wgmma, int warp) {
  const int rows = kTileRows * warp;
  if (wgmma.a_major == Major::k) return {rows, rows + kTileRows, 0, chunks_in(wgmma.depth, wgmma.types.a)};
  return {0, wgmma.depth, chunks_in(rows, wgmma.types.a), chunks_in(rows + kTileRows, wgmma.types.a)};
}
ChunkRange range_of_b(const Wgmma& wgmma) {
  if (wgmma.b_major == Major::k) return {0, wgmma.columns, 0, chunks_in(wgmma.depth, wgmma.types.b)};
  return {0, wgmma.depth, 0, chunks_in(wgmma.columns, wgmma.types.b)};
}

constexpr int kMostElementsOfChunk = 16;

// use(line, number of the first element in the line, elements) for each chunk.
template <class Use>
void for_each_chunk(const SharedMemory& memory, const MatrixLayout& layout, Element element, const ChunkRange& range,
                    Use use) {
  const int of_chunk = static_cast<int>(kMatrixChunk) / bytes_of(element);
  float elements[kMostElementsOfChunk];
  for (int line = range.first_line; line < range.end_line; ++line) {
    for (int chunk = range.first_chunk; chunk < range.end_chunk; ++chunk) {
      const std::uint32_t offset = layout.chunk(static_cast<std::uint32_t>(line), static_cast<std::uint32_t>(chunk));
      convert_elements(element, memory.at(offset), static_cast<int>(kMatrixChunk), elements);
      use(line, chunk * of_chunk, of_chunk, elements);
    }
  }
}

void load_rows(const SharedMemory& memory, const Wgmma& wgmma, std::uint64_t descriptor, int warp, RowTile& rows) {
  const MatrixLayout layout(Descriptor(descriptor), wgmma.a_major);
  const int first_row = kTileRows * warp;
  for_each_chunk(memory, layout, wgmma.types.a, range_of_a(wgmma, warp),
                 [&](int line, int first, int count, const float* elements) {
                   for (int i = 0; i < count; ++i) {
                     if (wgmma.a_major == Major::k)
                       rows.at[line - first_row][first + i] = elements[i];
                     else
                       rows.at[first + i - first_row][line] = elements[i];
                   }
                 });
}

void load_columns(const SharedMemory& memory, const Wgmma& wgmma, std::uint64_t descriptor,
                  std::vector<ColumnPanel>& panels) {
  panels.resize(static_cast<std::size_t>(wgmma.columns / kPanelColumns));
  const auto element = [&](int k, int column) -> float& {
    return panels[static_cast<std::size_t>(column / kPanelColumns)].at[k][column % kPanelColumns];
  };
  const MatrixLayout layout(Descriptor(descriptor), wgmma.b_major);
  for_each_chunk(memory, layout, wgmma.types.b, range_of_b(wgmma),
                 [&](int line, int first, int count, const float* elements) {
                   for (int i = 0; i < count; ++i) {
                     if (wgmma.b_major == Major::k)
                       element(first + i, line) = elements[i];
                     else
                       element(line, first + i) = elements[i];
                   }
                 });
}

void negate(RowTile& rows, int depth) {
  for (auto& row : rows.at)
    for (int k = 0; k < depth; ++k) row[k] = -row[k];
}

// The warp's 16 rows of the result.
void multiply_rows(Warp& warp, const Wgmma& wgmma, const RowTile& rows, const std::vector<ColumnPanel>& panels,
                   bool accumulates) {
  const int count = registers_of_panel(wgmma.types.accumulator);
  for (std::size_t panel = 0; panel < panels.size(); ++panel) {
    std::uint32_t* registers[4] = {};
    for (int i = 0; i < count; ++i)
      registers[i] = warp.raw(wgmma.sums[panel * static_cast<std::size_t>(count) + static_cast<std::size_t>(i)]).lane;
    SumPanel sums = {};
    if (accumulates) gather_sums(wgmma.types.accumulator, registers, sums);
    if (is_8_bit_float(wgmma.types.a))
      multiply_add_aligned(wgmma.types, rows, panels[panel], 0, wgmma.depth, sums);
    else
      multiply_add(rows, panels[panel], wgmma.depth, sums);
    scatter_sums(wgmma.types.accumulator, sums, registers);
  }
}

}  // namespace

// --- Issue -----------------------------------------------------------------------------------------------------------

void Warpgroup::issue(Warp& warp, const Instruction& instruction) {
  Member& own = member(warp);
  if (!own.warp) own.warp = &warp, own.agent = warp.cluster().new_agent();
  Operation issued = read_operands(warp, instruction);
  check_registers(warp, issued);
  const std::uint64_t number = own.issued++;
  if (number - first_ == operations_.size())
    operations_.push_back(std::move(issued));
  else
    check_same(warp, operation(number), issued, number);
  Operation& shared = operation(number);
  if (shared.executes) read_shared(warp, shared);
  const Wgmma& wgmma = shared.wgmma();  // what will land
  for (const Slot slot : wgmma.sums) warp.fly(slot, true);
  for (const Slot slot : wgmma.a) warp.fly(slot, false);
  if (++shared.issued == kWarpsOfGroup) complete_at_some_time(warp, number);
}

Warpgroup::Operation Warpgroup::read_operands(Warp& warp, const Instruction& instruction) {
  const Wgmma& wgmma = instruction.details<Wgmma>();
  Operation operation;
  operation.instruction = &instruction;
  if (wgmma.a.empty())
    operation.a = uniform(warp, warp.read<std::uint64_t>(wgmma.a_descriptor, kAllLanes), "the descriptor of A");
  operation.b = uniform(warp, warp.read<std::uint64_t>(wgmma.b_descriptor, kAllLanes), "the descriptor of B");
  operation.accumulates = wgmma.accumulates_always;
  if (wgmma.accumulates != kNoSlot) {
    const LaneMask lanes = warp.read_predicate(wgmma.accumulates, kAllLanes);
    operation.accumulates = lanes != 0;
    if (lanes != 0 && lanes != kAllLanes)
      warp.report(FindingKind::unequal_participation,
                  [] { return std::string("scale-d must be the same in all lanes of the warp"); });
  }
  return operation;
}

// All four must issue the same, each as its k-th.
void Warpgroup::check_same(Warp& warp, Operation& known, const Operation& own, std::uint64_t number) {
  const auto differ = [&](const std::string& what) {
    warp.report(FindingKind::unequal_participation, [&] {
      return fmt::format("wgmma {} of warp {} has {} than that of another warp of its warpgroup", number + 1,
                         warp.index(), what);
    });
    known.executes = false;
  };
  if (known.instruction != own.instruction) return differ("another instruction");
  if (known.a != own.a || known.b != own.b) return differ("another descriptor");
  if (known.accumulates != own.accumulates) return differ("another scale-d");
}

// A and the accumulators must have values, and no write since the last wgmma.fence, of which there must be one before
// the first wgmma. Accumulators that an earlier wgmma still adds to are in order.
void Warpgroup::check_registers(Warp& warp, const Operation& operation) {
  const Wgmma& wgmma = operation.wgmma();
  const auto written = [&](Slot slot) { return warp.written_since_fence(slot); };
  for (const Slot slot : wgmma.a) warp.read<std::uint32_t>(slot, kAllLanes);
  for (const Slot slot : wgmma.sums)
    if (operation.accumulates && !warp.accumulates(slot)) warp.read<std::uint32_t>(slot, kAllLanes);
  const bool a_written = std::any_of(wgmma.a.begin(), wgmma.a.end(), written);
  if (a_written || std::any_of(wgmma.sums.begin(), wgmma.sums.end(), written))
    warp.report(FindingKind::missing_wgmma_fence, [&] {
      return fmt::format("no wgmma.fence of the warp orders {} before this",
                         a_written ? "a register of A" : "an accumulator");
    });
}

// --- Shared memory ---------------------------------------------------------------------------------------------------

void Warpgroup::check_descriptor(Warp& warp, Operation& operation, std::uint64_t bits, const char* name) {
  const Descriptor descriptor(bits);
  if (descriptor.reserved == 0 && descriptor.base_offset == 0) return;
  operation.executes = false;
  warp.report(FindingKind::bad_operand, [&] {
    if (descriptor.reserved != 0)
      return fmt::format("the descriptor of {}, {:#018x}, must have zeros outside its fields", name, bits);
    return fmt::format("the descriptor of {}, {:#018x}, has the base offset {}; the emulator knows only 0", name, bits,
                       descriptor.base_offset);
  });
}

std::vector<Warpgroup::Run> Warpgroup::find_runs(Warp& warp, Operation& operation,
                                                 const std::vector<std::uint32_t>& chunks, const char* name) {
  const SharedMemory& memory = warp.block().shared();
  const std::uint32_t lowest = chunks.front(), end = chunks.back() + kMatrixChunk;
  if (!memory.contains(lowest, end - lowest)) {
    operation.executes = false;
    warp.report(FindingKind::shared_out_of_bounds, [&] {
      return fmt::format("the descriptor of {} covers {:#x} to {:#x} of shared memory, which is from {:#x} to {:#x}",
                         name, lowest, end, kFirstSharedOffset, memory.end());
    });
    return {};
  }
  std::vector<Run> runs;
  for (const std::uint32_t chunk : chunks) {
    const std::uint32_t run_end = runs.empty() ? 0 : runs.back().offset + runs.back().bytes;
    if (chunk > run_end || runs.empty())
      runs.push_back({chunk, kMatrixChunk});
    else if (chunk == run_end)
      runs.back().bytes += kMatrixChunk;
  }
  return runs;
}

// Checks what the warp reads against what others write. The bytes are read when the operation is computed.
void Warpgroup::read_shared(Warp& warp, Operation& operation) {
  const Wgmma& wgmma = operation.wgmma();
  std::vector<Run> a_runs;
  if (wgmma.a.empty()) {
    check_descriptor(warp, operation, operation.a, "A");
    const MatrixLayout layout(Descriptor(operation.a), wgmma.a_major);
    const ChunkRange range = range_of_a(wgmma, warp.index() % kWarpsOfGroup);
    a_runs = find_runs(warp, operation, chunks_of(layout, range), "A");
  }
  if (operation.b_runs.empty()) {
    check_descriptor(warp, operation, operation.b, "B");
    const MatrixLayout layout(Descriptor(operation.b), wgmma.b_major);
    operation.b_runs = find_runs(warp, operation, chunks_of(layout, range_of_b(wgmma)), "B");
  }
  if (!operation.executes) return;
  const Member& own = member(warp);
  const Clock open_group = own.groups_landed + static_cast<Clock>(own.group_ends.size()) + 1;
  const Accessor accessor{warp, own.agent, open_group, warp.knowledge(), Proxy::async};
  for (const Run& run : a_runs) warp.block().shared().record_read(accessor, run.offset, run.bytes);
  for (const Run& run : operation.b_runs) warp.block().shared().record_read(accessor, run.offset, run.bytes);
}

// --- Computing -------------------------------------------------------------------------------------------------------

// At once, beside the warps, or not before somebody waits.
void Warpgroup::complete_at_some_time(Warp& warp, std::uint64_t number) {
  switch (warp.cluster().random().below(3)) {
    case 0:
      compute_until(number + 1);
      break;
    case 1:
      warp.cluster().later([this, number] { compute_until(number + 1); });
      break;
    default:
      break;
  }
  warp.cluster().something_happened();
}

void Warpgroup::compute_until(std::uint64_t end) {
  for (; computed_ < end; ++computed_)
    if (const Operation& next = operation(computed_); next.executes) compute(next);
}

void Warpgroup::compute(const Operation& operation) {
  const Wgmma& wgmma = operation.wgmma();
  const SharedMemory& memory = members_.front().warp->block().shared();
  load_columns(memory, wgmma, operation.b, b_);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Warp& warp = *members_[i].warp;
    RowTile rows;
    if (wgmma.a.empty()) {
      load_rows(memory, wgmma, operation.a, static_cast<int>(i), rows);
    } else {
      RegisterBits registers[4];
      std::transform(wgmma.a.begin(), wgmma.a.end(), registers, [&](Slot slot) { return warp.raw_source(slot).lane; });
      gather_rows(wgmma.types.a, registers, static_cast<int>(wgmma.a.size()), rows);
    }
    if (wgmma.negates) negate(rows, wgmma.depth);
    multiply_rows(warp, wgmma, rows, b_, operation.accumulates);
  }
}

// --- Groups ----------------------------------------------------------------------------------------------------------

void Warpgroup::commit_group(Warp& warp) {
  Member& own = member(warp);
  own.group_ends.push_back(own.issued);
}

Outcome Warpgroup::wait_group(Warp& warp, const Instruction& instruction) {
  const auto pending = static_cast<std::size_t>(instruction.immediate);
  Member& own = member(warp);
  const std::size_t groups = own.group_ends.size() - std::min(own.group_ends.size(), pending);
  if (groups == 0) {
    check_same_wait(warp, instruction);
    return Outcome::next;
  }
  const std::uint64_t end = own.group_ends[groups - 1];
  if (end > own.landed) {
    const bool all_issued = end <= computed_ || operation(end - 1).issued == kWarpsOfGroup;
    if (!all_issued && !give_up_on_ended(warp, end))
      return warp.block_for({Wait::For::wgmma, static_cast<std::uint32_t>(warp.index() / kWarpsOfGroup),
                             static_cast<std::uint32_t>(end)});
    compute_until(end);
    land(warp, end);
  }
  own.group_ends.erase(own.group_ends.begin(), own.group_ends.begin() + static_cast<std::ptrdiff_t>(groups));
  own.groups_landed += static_cast<Clock>(groups);
  if (own.warp) warp.knowledge().seen.raise(own.agent, own.groups_landed);
  check_same_wait(warp, instruction);
  return Outcome::next;
}

// All four must execute the same wait, each as its k-th (PTX ISA 9.7.15.7.3, ".aligned").
void Warpgroup::check_same_wait(Warp& warp, const Instruction& instruction) {
  const std::uint64_t number = member(warp).waits++;
  if (number - first_wait_ == waits_.size()) waits_.push_back(&instruction);
  if (waits_[static_cast<std::size_t>(number - first_wait_)] != &instruction)
    warp.report(FindingKind::unequal_participation, [&] {
      return fmt::format("wait_group {} of warp {} is another instruction than that of another warp of its warpgroup",
                         number + 1, warp.index());
    });
  const auto left_by_all = std::min_element(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
                             return a.waits < b.waits;
                           })->waits;
  for (; first_wait_ < left_by_all; ++first_wait_) waits_.pop_front();
}

// The warp may touch the registers of its operations up to `end` again.
void Warpgroup::land(Warp& warp, std::uint64_t end) {
  Member& own = member(warp);
  for (; own.landed < end; ++own.landed) {
    const Wgmma& wgmma = operation(own.landed).wgmma();
    for (const Slot slot : wgmma.sums) warp.land(slot, true);
    for (const Slot slot : wgmma.a) warp.land(slot, false);
  }
  const auto landed_by_all = std::min_element(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
                               return a.landed < b.landed;
                             })->landed;
  for (; first_ < landed_by_all; ++first_) operations_.pop_front();
}

// An operation that a warp which has ended has not issued never will be complete: reports it, and it is not executed.
bool Warpgroup::give_up_on_ended(Warp& warp, std::uint64_t end) {
  const auto& warps = warp.block().warps();
  const int first_warp = warp.index() / kWarpsOfGroup * kWarpsOfGroup;
  bool gives_up = false;
  for (int i = 0; i < kWarpsOfGroup; ++i) {
    const Member& other = members_[static_cast<std::size_t>(i)];
    if (other.issued >= end || !warps[static_cast<std::size_t>(first_warp + i)]->ended()) continue;
    gives_up = true;
    warp.report(FindingKind::unequal_participation, [&] {
      return fmt::format("warp {} has ended after {} wgmma, this one waits for number {}", first_warp + i, other.issued,
                         end);
    });
    for (std::uint64_t number = std::max(other.issued, computed_); number < end; ++number)
      operation(number).executes = false;
  }
  return gives_up;
}

std::string Warpgroup::describe_wait(std::uint64_t operation) const {
  std::string missing;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i].issued < operation) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", i);
  return fmt::format("wgmma {} of the warpgroup, which its warps {} have not issued", operation, missing);
}

}  // namespace flashjit::emulator
