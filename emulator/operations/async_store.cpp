// SPDX-License-Identifier: Apache-2.0
// st.async (PTX ISA 9.7.9): registers go to the shared memory of a block of the cluster at some later time, and an
// mbarrier there counts their bytes. It is an ordinary store otherwise: no proxy fence is needed.
#include "emulator/operations/async_store.h"

#include <array>

#include "emulator/machine/memory_access.h"
#include "emulator/operations/landing.h"

namespace flashjit::emulator {
namespace {

// The elements of a vector stand in operands 0 to 3.
struct AsyncStore : Detail {
  Decoding::Address address, mbarrier;
  std::size_t count = 1;
};

using Stored = std::array<std::byte, 4 * sizeof(std::uint64_t)>;

void issue(Warp& warp, const Landing& to, const Stored& stored, std::uint32_t bytes) {
  if (!is_alive(warp, *to.block)) return;
  Mbarriers& barriers = to.block->state().mbarriers;
  const auto user = to.block == &warp.block() ? Mbarriers::User::own_block : Mbarriers::User::other_block;
  const Mbarrier* const barrier = barriers.find(warp, to.mbarrier, user);
  if (!barrier) return;
  const Accessor accessor{warp, barrier->agent, barrier->phase + 1, warp.knowledge(), Proxy::generic};
  to.block->shared().record_write(accessor, to.offset, bytes);
  const Mbarriers::Ticket ticket{to.mbarrier, barrier->phase};
  const std::uint64_t write = to.block->state().copy_started(warp, "writes");
  warp.cluster().later([&warp, to, stored, bytes, ticket, write] {
    std::copy_n(stored.data(), bytes, to.block->shared().at(to.offset));
    to.block->state().copy_ended(write);
    to.block->state().mbarriers.land_bytes(warp, ticket, bytes);
  });
}

template <class Bits>
Outcome run_async_store(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& store = instruction.details<AsyncStore>();
  const auto bytes = static_cast<std::uint32_t>(store.count * sizeof(Bits));
  const LaneAddresses to = read_addresses(warp, store.address, active);
  const LaneAddresses mbarriers = read_addresses(warp, store.mbarrier, active);
  for_each_lane(active, [&](int lane) {
    Stored stored;
    for (std::size_t i = 0; i < store.count; ++i) {
      const Bits value = warp.read<Bits>(instruction.operand[i], active)[lane];
      std::memcpy(stored.data() + i * sizeof(Bits), &value, sizeof(Bits));
    }
    if (const auto place = find_landing(warp, SharedSpace::cluster, to.lane[lane], bytes, bytes, mbarriers.lane[lane]))
      issue(warp, *place, stored, bytes);
  });
  return Outcome::next;
}

}  // namespace

void decode_async_store(Decoding& decoding, Instruction& instruction) {
  auto store = std::make_unique<AsyncStore>();
  decoding.take("weak");
  SharedSpace space;
  if (!take_shared_space(decoding, space) || space != SharedSpace::cluster)
    decoding.fail("the destination must be shared::cluster");
  if (!decoding.take("mbarrier::complete_tx::bytes")) decoding.fail("it must complete at an mbarrier");
  store->count = take_vector_size(decoding);
  const std::string_view type = decoding.take_any();
  const bool is_long = type == "b64" || type == "u64" || type == "s64" || type == "f64";
  if (!is_long && type != "b32" && type != "u32" && type != "s32" && type != "f32")
    decoding.fail(fmt::format("the type must have 32 or 64 bits, was {}", type));
  decoding.finish();
  if (is_long && store->count == 4) decoding.fail("a thread must store at most 16 bytes, stores 32");
  store->address = decoding.address(0);
  const std::vector<Slot> slots = decoding.sources(1, is_long ? 64 : 32);
  if (slots.size() != store->count)
    decoding.fail(fmt::format("it must have {} elements, has {}", store->count, slots.size()));
  std::copy(slots.begin(), slots.end(), instruction.operand.begin());
  store->mbarrier = decoding.address(2);
  instruction.op_class = OpClass::shared;
  instruction.run = is_long ? run_async_store<std::uint64_t> : run_async_store<std::uint32_t>;
  instruction.detail = std::move(store);
}

}  // namespace flashjit::emulator
