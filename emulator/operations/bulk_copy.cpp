// SPDX-License-Identifier: Apache-2.0
// Copies of the copy engine, TMA (PTX ISA, "Bulk copy", and "Tensor copy"). An instruction only
// issues a copy: its accesses of shared memory are checked against what its warp knows then, and it happens later.
#include <fmt/format.h>

#include "emulator/memory/bulk_copy.h"
#include "emulator/memory/tensor_map.h"
#include "emulator/operations/landing.h"
#include "emulator/operations/reduction.h"

namespace flashjit::emulator {
namespace {

constexpr std::uint32_t kBulkAlignment = 16;     // addresses and sizes of copies without a tensor map
constexpr std::uint32_t kTensorAlignment = 128;  // addresses in shared memory of copies with one
constexpr std::uint32_t kTensorMapAlignment = 64;
constexpr std::int64_t kRowAlignment = 16;  // where rows of a tensor's boxes begin

struct BulkCopy : Detail {
  // Where it comes from or goes to: global memory, a tensor map; the source of copies within a cluster.
  Decoding::Address outer;
  Decoding::Address shared;  // the other side
  SharedSpace shared_space = SharedSpace::cta;
  bool outer_is_shared = false;
  Decoding::Address mbarrier;  // of loads
  Slot block_mask = kNoSlot;   // 16 bits, of .multicast::cluster
  Slot bytes = kNoSlot;        // 32 bits, without a tensor map
  int rank = 0;                // 0 without a tensor map
  std::vector<Slot> coordinates;
  Reduction reduction = Reduction::none;
  TensorElement element = TensorElement::u8;  // of a reduction without a tensor map

  std::uint32_t alignment() const { return rank == 0 ? kBulkAlignment : kTensorAlignment; }
};

// --- What is copied --------------------------------------------------------------------------------------------------

// None after a report.
std::optional<TensorMapDescription> read_tensor_map(Warp& warp, const BulkCopy& copy, std::uint64_t address) {
  if (address % kTensorMapAlignment != 0) {
    warp.report(FindingKind::misaligned, [&] {
      return fmt::format("the address of the tensor map must be a multiple of {}, was {:#x}", kTensorMapAlignment,
                         address);
    });
    return std::nullopt;
  }
  const std::byte* const bytes = warp.cluster().launch().global(warp, address, sizeof(TensorMap), false);
  if (!bytes) return std::nullopt;
  const auto map = decode_tensor_map(bytes);
  if (map && map->rank == copy.rank && can_reduce(copy.reduction, map->element)) return map;
  warp.report(FindingKind::bad_operand, [&]() -> std::string {
    if (!map) return "the tensor map must come from encode_tensor_map";
    if (map->rank != copy.rank) return fmt::format("the tensor must have {} dimensions, has {}", copy.rank, map->rank);
    return "the elements of the tensor do not have this reduction";
  });
  return std::nullopt;
}

// Drops the rows whose global memory is not the kernel's to access, after a report.
void check_rows(Warp& warp, CopyBox& box, bool writes) {
  LaunchState& launch = warp.cluster().launch();
  std::erase_if(box.rows, [&](const CopyBox::Row& row) {
    return !launch.global(warp, reinterpret_cast<std::uintptr_t>(row.global), row.bytes, writes);
  });
}

// What hardware answers with an illegal instruction, inside the tensor and outside: an H200 (driver 580) ended so 42 of
// 42 copies whose first coordinate was at no multiple of 16 bytes, and 5 of 5 writes with a negative coordinate. The
// latter is in the CUDA programming guide, too ("Negative indices and out of bounds"). False after a report.
bool can_begin_at(Warp& warp, const TensorMapDescription& map, const std::array<std::int32_t, kMostDimensions>& at,
                  bool writes) {
  const std::int64_t size = bytes_of(map.element);
  if (at[0] * size % kRowAlignment != 0) {
    warp.report(FindingKind::misaligned, [&] {
      return fmt::format(
          "the first coordinate must be at a multiple of {} bytes, was {} elements of {} bytes: hardware "
          "ends with an illegal instruction",
          kRowAlignment, at[0], size);
    });
    return false;
  }
  const auto negative = std::find_if(at.begin(), at.end(), [](std::int32_t value) { return value < 0; });
  if (!writes || negative == at.end()) return true;
  warp.report(FindingKind::bad_operand, [&] {
    return fmt::format(
        "the coordinates of what is written to a tensor must not be negative, coordinate {} was {}: "
        "hardware ends with an illegal instruction",
        negative - at.begin(), *negative);
  });
  return false;
}

// What hardware answers with an illegal address: a load of a box whose first element is outside of the tensor, by any
// of its coordinates, where the tensor's address is nobody's memory. An H100 (driver 580) ended so 48 of 48 such loads,
// and none of 8 whose first element was inside. Stores write nothing there.
bool begins_outside(const TensorMapDescription& map, const std::array<std::int32_t, kMostDimensions>& at) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(map.rank); ++i)
    if (at[i] < 0 || static_cast<std::uint64_t>(at[i]) >= map.sizes[i]) return true;
  return false;
}
// False after a report.
bool can_read_address(Warp& warp, const TensorMapDescription& map) {
  const auto address = reinterpret_cast<std::uintptr_t>(map.address);
  return warp.cluster().launch().global(warp, address, kBulkAlignment, false) != nullptr;
}

std::optional<CopyBox> read_tensor_box(Warp& warp, const BulkCopy& copy, std::uint64_t map_address, int lane,
                                       LaneMask active, bool writes) {
  const auto map = read_tensor_map(warp, copy, map_address);
  if (!map) return std::nullopt;
  std::array<std::int32_t, kMostDimensions> at{};
  for (std::size_t i = 0; i < copy.coordinates.size(); ++i)
    at[i] = static_cast<std::int32_t>(warp.read<std::uint32_t>(copy.coordinates[i], active)[lane]);
  if (!can_begin_at(warp, *map, at, writes)) return std::nullopt;
  if (!writes && begins_outside(*map, at) && !can_read_address(warp, *map)) return std::nullopt;
  return box_at(*map, at);
}

// A copy without a tensor map is a box of one row.
std::optional<CopyBox> read_plain_box(Warp& warp, const BulkCopy& copy, std::uint64_t address, int lane,
                                      LaneMask active) {
  CopyBox box;
  box.bytes = box.row_bytes = box.row_pitch = box.shared_bytes = warp.read<std::uint32_t>(copy.bytes, active)[lane];
  box.element = copy.element;
  if (box.bytes == 0 || box.bytes % kBulkAlignment != 0) {
    warp.report(FindingKind::bad_operand, [&] {
      return fmt::format("the size must be a positive multiple of {}, was {}", kBulkAlignment, box.bytes);
    });
    return std::nullopt;
  }
  if (address % kBulkAlignment != 0) {
    warp.report(FindingKind::misaligned, [&] {
      return fmt::format("the address must be a multiple of {}, was {:#x}", kBulkAlignment, address);
    });
    return std::nullopt;
  }
  box.rows.push_back({0, box.bytes, reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address))});
  return box;
}

std::optional<CopyBox> read_global_box(Warp& warp, const BulkCopy& copy, std::uint64_t address, int lane,
                                       LaneMask active, bool writes) {
  auto box = copy.rank == 0 ? read_plain_box(warp, copy, address, lane, active)
                            : read_tensor_box(warp, copy, address, lane, active, writes);
  if (box) check_rows(warp, *box, writes);
  return box;
}

// --- Loads: into shared memory, completing at an mbarrier ------------------------------------------------------------

struct Load {
  CopyBox box;
  Reduction reduction = Reduction::none;
  Block* source_block = nullptr;  // of copies within a cluster
  std::uint32_t source = 0;       // their offset there
};

void put_load(const Load& load, SharedMemory& shared, std::uint32_t offset) {
  const CopyBox& box = load.box;
  if (load.reduction == Reduction::none)
    for_each_written(box, offset, [&](std::uint32_t at, std::uint32_t bytes) { fill(box.fill, shared.at(at), bytes); });
  for (const CopyBox::Row& row : box.rows)
    for_each_piece(box, row, offset, [&](std::uint32_t in_box, std::uint32_t at, std::uint32_t bytes) {
      reduce(load.reduction, box.element, shared.at(at), row.global + (in_box - row.offset), bytes);
    });
}

void issue_load(Warp& warp, const std::shared_ptr<const Load>& load, const Landing& to) {
  if (!is_alive(warp, *to.block)) return;
  Mbarriers& barriers = to.block->state().mbarriers;
  const Mbarrier* const barrier = barriers.find(warp, to.mbarrier, Mbarriers::User::copy);
  if (!barrier) return;
  const Clock clock = barrier->phase + 1;
  Knowledge known = warp.knowledge();
  if (load->reduction != Reduction::none) known.seen.raise(barrier->agent, clock);  // they may come in any order
  const Accessor accessor{warp, barrier->agent, clock, known, Proxy::async};
  for_each_written(load->box, to.offset, [&](std::uint32_t at, std::uint32_t bytes) {
    to.block->shared().record_write(accessor, at, bytes);
  });
  if (load->source_block) load->source_block->shared().record_read(accessor, load->source, load->box.bytes);

  const Mbarriers::Ticket ticket{to.mbarrier, barrier->phase};
  const std::uint64_t write = to.block->state().copy_started(warp, "writes");
  const std::uint64_t read = load->source_block ? load->source_block->state().copy_started(warp, "reads") : 0;
  warp.cluster().later([&warp, load, to, ticket, write, read] {
    put_load(*load, to.block->shared(), to.offset);
    to.block->state().copy_ended(write);
    if (load->source_block) load->source_block->state().copy_ended(read);
    to.block->state().mbarriers.land_bytes(warp, ticket, load->box.bytes);
  });
  warp.cluster().launch().counters.tma_bytes_loaded += load->box.bytes;  // multicast: in each block
}

// The blocks of a mask, or the one that the address names. Empty after a report.
std::vector<Block*> find_blocks(Warp& warp, const BulkCopy& copy, Block* addressed, int lane, LaneMask active) {
  if (copy.block_mask == kNoSlot) return {addressed};
  const std::uint32_t mask = warp.read<std::uint32_t>(copy.block_mask, active)[lane] & 0xffff;
  const auto& all = warp.cluster().blocks();
  if (mask == 0 || mask >> all.size() != 0) {
    warp.report(FindingKind::bad_operand, [&] {
      return fmt::format("the mask must name some of the {} blocks of the cluster, was {:#x}", all.size(), mask);
    });
    return {};
  }
  std::vector<Block*> blocks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (mask >> rank & 1) blocks.push_back(all[rank].get());
  return blocks;
}

void start_load(Warp& warp, const BulkCopy& copy, const std::shared_ptr<const Load>& load, std::uint64_t address,
                std::uint64_t mbarrier, int lane, LaneMask active) {
  const auto to = find_landing(warp, copy.shared_space, address, load->box.shared_bytes, copy.alignment(), mbarrier);
  if (!to) return;
  for (Block* const block : find_blocks(warp, copy, to->block, lane, active))
    issue_load(warp, load, {block, to->offset, to->mbarrier});
}

// Null after a report.
std::shared_ptr<const Load> read_load(Warp& warp, const BulkCopy& copy, std::uint64_t address, int lane,
                                      LaneMask active) {
  auto load = std::make_shared<Load>();
  load->reduction = copy.reduction;
  std::optional<CopyBox> box;
  if (!copy.outer_is_shared) {
    box = read_global_box(warp, copy, address, lane, active, false);
  } else if ((box = read_plain_box(warp, copy, address, lane, active))) {
    const auto from = find_aligned_shared(warp, SharedSpace::cta, address, box->bytes, kBulkAlignment);
    if (!from.block) return nullptr;
    load->source_block = from.block;
    load->source = from.offset;
    box->rows.front().global = from.block->shared().at(from.offset);
  }
  if (!box) return nullptr;
  load->box = std::move(*box);
  return load;
}

Outcome run_load(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& copy = instruction.details<BulkCopy>();
  const LaneAddresses from = read_addresses(warp, copy.outer, active), to = read_addresses(warp, copy.shared, active);
  const LaneAddresses mbarriers = read_addresses(warp, copy.mbarrier, active);
  for_each_lane(active, [&](int lane) {
    if (const auto load = read_load(warp, copy, from.lane[lane], lane, active))
      start_load(warp, copy, load, to.lane[lane], mbarriers.lane[lane], lane, active);
  });
  return Outcome::next;
}

// --- Stores: from shared memory, completing in groups ----------------------------------------------------------------

struct Store {
  CopyBox box;
  Reduction reduction = Reduction::none;
  std::uint32_t offset = 0;
  std::vector<std::byte> staging;  // the box, once it is read
};

// Only what goes somewhere is read.
void record_reads(Warp& warp, const Store& store, CopyGroups& groups) {
  SharedMemory& shared = warp.block().shared();
  const Accessor accessor{warp, groups.agent(warp.cluster()), groups.clock(), warp.knowledge(), Proxy::async};
  for (const CopyBox::Row& row : store.box.rows) {
    if (row.bytes == store.box.row_pitch)  // a whole row: the swizzle stays inside
      shared.record_read(accessor, store.offset + row.offset, row.bytes);
    else
      for_each_piece(store.box, row, store.offset, [&](std::uint32_t, std::uint32_t at, std::uint32_t bytes) {
        shared.record_read(accessor, at, bytes);
      });
  }
}

void take_store(Store& store, const SharedMemory& shared) {
  store.staging.resize(store.box.shared_bytes);
  for (const CopyBox::Row& row : store.box.rows)
    for_each_piece(store.box, row, store.offset, [&](std::uint32_t in_box, std::uint32_t at, std::uint32_t bytes) {
      std::copy_n(shared.at(at), bytes, store.staging.data() + in_box);
    });
}

void put_store(const Store& store) {
  for (const CopyBox::Row& row : store.box.rows)
    reduce(store.reduction, store.box.element, row.global, store.staging.data() + row.offset, row.bytes);
}

// Reads and writes happen each at a time of its own.
void issue_store(Warp& warp, const std::shared_ptr<Store>& store, LaneMask issuer) {
  Block& block = warp.block();
  CopyGroups& groups = block.state().of(warp).bulk;
  record_reads(warp, *store, groups);
  const std::shared_ptr<CopyGroup> group = groups.open_for(issuer);
  ++group->running;
  ++group->reading;
  const std::uint64_t number = block.state().copy_started(warp, "reads");
  warp.cluster().later([&block, store, group, number] {
    take_store(*store, block.shared());
    --group->reading;
    block.state().copy_ended(number);
    block.cluster().later([store, group] {
      put_store(*store);
      --group->running;
    });
  });
  warp.cluster().launch().counters.tma_bytes_stored += store->box.bytes;
}

Outcome run_store(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& copy = instruction.details<BulkCopy>();
  const LaneAddresses to = read_addresses(warp, copy.outer, active), from = read_addresses(warp, copy.shared, active);
  for_each_lane(active, [&](int lane) {
    auto box = read_global_box(warp, copy, to.lane[lane], lane, active, true);
    if (!box) return;
    const auto place =
        find_aligned_shared(warp, SharedSpace::cta, from.lane[lane], box->shared_bytes, copy.alignment());
    if (!place.block) return;
    auto store = std::make_shared<Store>();
    store->box = std::move(*box);
    store->reduction = copy.reduction;
    store->offset = place.offset;
    issue_store(warp, store, LaneMask{1} << lane);
  });
  return Outcome::next;
}

Outcome run_prefetch(Warp&, const Instruction&, LaneMask) { return Outcome::next; }

// --- Decoding --------------------------------------------------------------------------------------------------------

int take_rank(Decoding& decoding) {
  const std::string_view rank = decoding.take_any();
  if (rank.size() != 2 || rank[0] < '1' || rank[0] > '0' + kMostDimensions || rank[1] != 'd')
    decoding.fail("the dimensions must be from 1d to 5d");
  return rank[0] - '0';
}

// "[map, {x, y}]"
void take_tensor(Decoding& decoding, BulkCopy& copy, std::size_t operand) {
  copy.outer = decoding.address(operand);
  for (const Operand& element : decoding.operand(operand).elements)
    copy.coordinates.push_back(decoding.source(element, 32));
  if (copy.coordinates.size() != static_cast<std::size_t>(copy.rank))
    decoding.fail(fmt::format("there must be {} coordinates, are {}", copy.rank, copy.coordinates.size()));
}

void take_reduction(Decoding& decoding, BulkCopy& copy) {
  const auto reduction = find_reduction(decoding.take_any());
  if (!reduction) decoding.fail("the reduction must be add, min, max, inc, dec, and, or, xor");
  copy.reduction = *reduction;
}

// Of a copy without a tensor map, whose opcode ends in them.
void take_typed_reduction(Decoding& decoding, BulkCopy& copy) {
  take_reduction(decoding, copy);
  decoding.take("noftz");
  const auto element = find_reduction_type(decoding.take_any());
  if (!element || !can_reduce(copy.reduction, *element)) decoding.fail("the type does not have this reduction");
  copy.element = *element;
}

void require_operands(Decoding& decoding, std::size_t count) {
  if (decoding.operand_count() != count)
    decoding.fail(fmt::format("it must have {} operands, has {}", count, decoding.operand_count()));
}

// What has come before: "async.bulk{.tensor.2d}" and the destination.
void decode_load(Decoding& decoding, BulkCopy& copy, bool reduces) {
  copy.outer_is_shared = copy.rank == 0 && decoding.take("shared::cta");
  if (!copy.outer_is_shared && !decoding.take("global")) decoding.fail("the source must be global or shared::cta");
  decoding.take("tile");
  if (!decoding.take("mbarrier::complete_tx::bytes")) decoding.fail("it must complete at an mbarrier");
  const bool is_multicast = decoding.take("multicast::cluster"), has_policy = decoding.take("L2::cache_hint");
  if (reduces) take_typed_reduction(decoding, copy);
  copy.shared = decoding.address(0);
  std::size_t next = 2;
  if (copy.rank != 0) {
    take_tensor(decoding, copy, 1);
  } else {
    copy.outer = decoding.address(1);
    copy.bytes = decoding.source(next++, 32);
  }
  copy.mbarrier = decoding.address(next++);
  if (is_multicast) copy.block_mask = decoding.source(next++, 16);
  require_operands(decoding, next + (has_policy ? 1 : 0));
}

void decode_store(Decoding& decoding, BulkCopy& copy, bool reduces) {
  if (!decoding.take("shared::cta")) decoding.fail("the source must be shared::cta");
  if (reduces && copy.rank != 0) take_reduction(decoding, copy);
  decoding.take("tile");
  if (!decoding.take("bulk_group")) decoding.fail("it must complete in a bulk_group");
  const bool has_policy = decoding.take("L2::cache_hint");
  if (reduces && copy.rank == 0) take_typed_reduction(decoding, copy);
  if (copy.rank != 0)
    take_tensor(decoding, copy, 0);
  else
    copy.outer = decoding.address(0);
  copy.shared = decoding.address(1);
  if (copy.rank == 0) copy.bytes = decoding.source(2, 32);
  require_operands(decoding, (copy.rank == 0 ? 3 : 2) + (has_policy ? 1 : 0));
}

// Caches are not modelled.
void decode_prefetch(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("tensor")) take_rank(decoding);
  if (!decoding.take("L2") || !decoding.take("global")) decoding.fail("it must be .L2.global");
  decoding.take("tile");
  decoding.take("L2::cache_hint");
  instruction.run = run_prefetch;
}

}  // namespace

void decode_bulk_copy(Decoding& decoding, Instruction& instruction, bool reduces) {
  if (decoding.take("prefetch")) return decode_prefetch(decoding, instruction);
  auto copy = std::make_unique<BulkCopy>();
  if (decoding.take("tensor")) copy->rank = take_rank(decoding);
  if (decoding.take("global")) {
    decode_store(decoding, *copy, reduces);
    instruction.run = run_store;
  } else {
    if (!take_shared_space(decoding, copy->shared_space)) decoding.fail("the destination must be global or shared");
    if (reduces && copy->rank != 0) decoding.fail("a tensor cannot be reduced into shared memory");
    decode_load(decoding, *copy, reduces);
    instruction.run = run_load;
  }
  instruction.detail = std::move(copy);
}

}  // namespace flashjit::emulator
