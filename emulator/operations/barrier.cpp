// SPDX-License-Identifier: Apache-2.0
// Barriers of a block and of a cluster, fences, and addresses in other blocks of the cluster.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "emulator/machine/block_state.h"
#include "emulator/machine/mbarrier.h"
#include "emulator/machine/shared_address.h"

namespace flashjit::emulator {

// bar.warp.sync, in operations_warp.cpp.
void decode_bar_warp(Decoding& decoding, Instruction& instruction);

namespace {

// --- Named barriers (PTX ISA, "bar, barrier") ------------------------------------------------------------------------

struct NamedBarrierUse : Detail {
  Slot number = kNoSlot;
  Slot threads = kNoSlot;  // none: the whole block
  enum class Vote { none, count, all, any } vote = Vote::none;
  Slot result = kNoSlot;     // a predicate for all and any
  Slot predicate = kNoSlot;  // of the vote
  bool predicate_negated = false;
};

// The value that all lanes give; none after a report.
std::optional<std::uint32_t> read_uniform(Warp& warp, Slot slot, LaneMask active, const char* name) {
  const std::uint32_t* const values = warp.read<std::uint32_t>(slot, active);
  const std::uint32_t value = values[std::countr_zero(active)];
  bool same = true;
  for_each_lane(active, [&](int lane) { same = same && values[lane] == value; });
  if (same) return value;
  warp.report(FindingKind::bad_operand,
              [&] { return fmt::format("{} must be the same in all threads of the warp", name); });
  return std::nullopt;
}

std::optional<std::uint32_t> read_barrier_number(Warp& warp, const NamedBarrierUse& use, LaneMask active) {
  const auto number = read_uniform(warp, use.number, active, "the number of the barrier");
  if (!number || *number < kNamedBarriers) return number;
  warp.report(FindingKind::bad_operand, [&] {
    return fmt::format("the number of the barrier must be less than {}, was {}", kNamedBarriers, *number);
  });
  return std::nullopt;
}

std::optional<std::uint32_t> read_thread_count(Warp& warp, const NamedBarrierUse& use, LaneMask active) {
  if (use.threads == kNoSlot) return static_cast<std::uint32_t>(warp.block().warps().size()) * kLanes;
  const auto threads = read_uniform(warp, use.threads, active, "the number of threads");
  if (!threads || (*threads != 0 && *threads % kLanes == 0)) return threads;
  warp.report(FindingKind::bad_operand, [&] {
    return fmt::format("the number of threads must be a positive multiple of {}, was {}", kLanes, *threads);
  });
  return std::nullopt;
}

// Completes the open generation when everybody has arrived.
void settle(Block& block, NamedBarrier& barrier) {
  NamedBarrier::Generation& open = *barrier.open;
  if (open.expected == 0) return;
  const auto need_not_come = [&](const auto& warp) { return warp->ended() || (open.warps >> warp->index() & 1) != 0; };
  const bool all_have_come = open.whole_block && std::all_of(block.warps().begin(), block.warps().end(), need_not_come);
  if (open.arrived < open.expected && !all_have_come) return;
  open.complete = true;
  barrier.open = std::make_shared<NamedBarrier::Generation>();
  block.cluster().something_happened();
}

void check_arrival(Warp& warp, const NamedBarrier::Generation& open, std::uint32_t number, std::uint32_t threads) {
  if (open.expected != threads)
    warp.report(FindingKind::barrier_mismatch, [&] {
      return fmt::format("named barrier {} is for {} threads here, and for {} by {}", number, threads, open.expected,
                         warp.name_of(open.instruction));
    });
  if (open.warps >> warp.index() & 1)
    warp.report(FindingKind::barrier_mismatch, [&] {
      return fmt::format("warp {} arrives again at named barrier {} before it completes: {} of {} threads have arrived",
                         warp.index(), number, open.arrived, open.expected);
    });
}

void vote(Warp& warp, NamedBarrier::Generation& open, const NamedBarrierUse& use, LaneMask active) {
  LaneMask holds = warp.read_predicate(use.predicate, active);
  if (use.predicate_negated) holds = ~holds;
  open.votes += static_cast<unsigned>(std::popcount(holds & active));
  open.voters += static_cast<unsigned>(std::popcount(active));
}

// The generation that the warp belongs to, complete or not; null after a report. Threads count in whole warps, also
// where the block ends within one.
std::shared_ptr<NamedBarrier::Generation> arrive(Warp& warp, const NamedBarrierUse& use, LaneMask active) {
  const auto number = read_barrier_number(warp, use, active);
  const auto threads = read_thread_count(warp, use, active);
  if (!number || !threads) return nullptr;
  NamedBarrier& barrier = warp.block().state().named_barriers[*number];
  std::shared_ptr<NamedBarrier::Generation> open = barrier.open;
  if (open->expected == 0) {
    open->expected = *threads;
    open->whole_block = use.threads == kNoSlot;
    open->instruction = warp.instruction();
  }
  check_arrival(warp, *open, *number, *threads);
  open->warps |= 1u << warp.index();
  open->arrived += kLanes;
  if (use.vote != NamedBarrierUse::Vote::none) vote(warp, *open, use, active);
  warp.release(open->knowledge);
  settle(warp.block(), barrier);
  return open;
}

void write_votes(Warp& warp, const NamedBarrier::Generation& generation, const NamedBarrierUse& use, LaneMask active) {
  using Vote = NamedBarrierUse::Vote;
  if (use.result == kNoSlot) return;
  if (use.vote == Vote::count) {
    std::uint32_t count[kLanes];
    std::fill_n(count, kLanes, generation.votes);
    warp.write(use.result, count, active);
    return;
  }
  const bool holds = use.vote == Vote::all ? generation.votes == generation.voters : generation.votes != 0;
  warp.write_predicate(use.result, holds ? kAllLanes : 0, active);
}

// All threads of the warp wait for each other first, also for barrier.* without .aligned.
bool takes_part(Warp& warp, LaneMask active) {
  if (active == warp.live()) return true;
  warp.report(FindingKind::unequal_participation, [&] {
    return fmt::format("all threads of the warp must execute it together; the mask of those that do is {:#010x}",
                       active);
  });
  return false;
}

Outcome run_named_sync(Warp& warp, const Instruction& instruction, LaneMask active) {
  const auto& use = instruction.details<NamedBarrierUse>();
  if (warp.here() != warp.live()) return warp.block_for({Wait::For::convergence});
  auto& waits_for = warp.block().state().of(warp).named_barrier;
  if (!waits_for) {
    if (!takes_part(warp, active)) return Outcome::next;
    waits_for = arrive(warp, use, active);
    if (!waits_for) return Outcome::next;
  }
  const std::uint32_t number = warp.read<std::uint32_t>(use.number, active)[std::countr_zero(active)];
  settle(warp.block(), warp.block().state().named_barriers[number]);  // warps may have ended
  if (!waits_for->complete) return warp.block_for({Wait::For::named_barrier, number});
  warp.acquire(waits_for->knowledge);
  write_votes(warp, *waits_for, use, active);
  waits_for.reset();
  return Outcome::next;
}

Outcome run_named_arrive(Warp& warp, const Instruction& instruction, LaneMask active) {
  if (warp.here() != warp.live()) return warp.block_for({Wait::For::convergence});
  if (takes_part(warp, active)) arrive(warp, instruction.details<NamedBarrierUse>(), active);
  return Outcome::next;
}

// The type of a vote, and its operands: the first is the result, the last the predicate.
void take_vote(Decoding& decoding, NamedBarrierUse& use) {
  using Vote = NamedBarrierUse::Vote;
  use.vote = decoding.take("popc") ? Vote::count : decoding.take("and") ? Vote::all : Vote::any;
  if (use.vote == Vote::any && !decoding.take("or")) decoding.fail("the operation must be popc, and, or");
  decoding.take("aligned");
  if (!decoding.take(use.vote == Vote::count ? "u32" : "pred")) decoding.fail("the type does not fit the operation");
  use.result = use.vote == Vote::count ? decoding.destination(0, 32) : decoding.predicate(0);
  const Operand& predicate = decoding.operand(decoding.operand_count() - 1);
  if (predicate.kind != OperandKind::predicate) decoding.fail("the last operand must be a predicate");
  use.predicate = predicate.slot;
  use.predicate_negated = predicate.negated;
}

void decode_named_barrier(Decoding& decoding, Instruction& instruction) {
  auto use = std::make_unique<NamedBarrierUse>();
  decoding.take("cta");
  const std::string_view operation = decoding.take_any();
  const bool votes = operation == "red", arrives = operation == "arrive";
  if (!votes && !arrives && operation != "sync") decoding.fail("the operation must be sync, arrive or red");
  if (votes) take_vote(decoding, *use);
  decoding.take("aligned");
  const std::size_t first = votes ? 1 : 0, end = decoding.operand_count() - first;  // the vote's stand around these
  use->number = decoding.source(first, 32);
  if (first + 1 < end) use->threads = decoding.source(first + 1, 32);
  if (first + 2 < end) decoding.fail("it has too many operands");
  if (arrives && use->threads == kNoSlot) decoding.fail("arrive must have a number of threads");
  instruction.run = arrives ? run_named_arrive : run_named_sync;
  instruction.op_class = OpClass::barrier;
  instruction.detail = std::move(use);
}

// --- The barrier of a cluster (PTX ISA, "barrier.cluster") -----------------------------------------------------------

ClusterBarrier& cluster_barrier(Warp& warp) { return warp.cluster().blocks().front()->state().cluster_barrier; }

std::size_t number_in_cluster(Warp& warp) {
  return warp.block().rank() * warp.block().warps().size() + static_cast<std::size_t>(warp.index());
}

void settle(Cluster& cluster, ClusterBarrier& barrier) {
  ClusterBarrier::Generation& open = *barrier.open;
  for (const auto& block : cluster.blocks())
    for (const auto& warp : block->warps())
      if ((warp->live() & ~open.arrived[number_in_cluster(*warp)]) != 0) return;
  open.complete = true;
  barrier.open = std::make_shared<ClusterBarrier::Generation>();
  cluster.something_happened();
}

// A relaxed arrival releases what a fence before it has released (PTX ISA, "Release and Acquire Patterns").
void release(Warp& warp, ClusterBarrier::Generation& open, bool relaxed) {
  BlockState::WarpState& state = warp.block().state().of(warp);
  open.initialisations.join(state.initialisations);
  open.initialisations.raise(warp.agent(), state.initialisation_fence);
  if (relaxed)
    open.knowledge.join(state.at_fence);
  else
    warp.release(open.knowledge);
}

Outcome run_cluster_arrive(Warp& warp, const Instruction& instruction, LaneMask active) {
  ClusterBarrier& barrier = cluster_barrier(warp);
  const std::shared_ptr<ClusterBarrier::Generation> open = barrier.open;
  open->arrived.resize(warp.cluster().blocks().size() * warp.block().warps().size());
  auto& waits_for = warp.block().state().of(warp).cluster_barrier;
  for_each_lane(active, [&](int lane) {
    if (waits_for[lane])
      warp.report(FindingKind::barrier_mismatch, [&] {
        return fmt::format("lane {} arrives again at the barrier of the cluster without having waited", lane);
      });
    waits_for[lane] = open;
  });
  open->arrived[number_in_cluster(warp)] |= active;
  const bool relaxed = instruction.immediate != 0;
  release(warp, *open, relaxed);
  settle(warp.cluster(), barrier);
  return Outcome::next;
}

Outcome run_cluster_wait(Warp& warp, const Instruction&, LaneMask active) {
  ClusterBarrier& barrier = cluster_barrier(warp);
  BlockState::WarpState& state = warp.block().state().of(warp);
  if (!barrier.open->arrived.empty()) settle(warp.cluster(), barrier);  // warps may have ended
  bool complete = true;
  for_each_lane(active, [&](int lane) {
    if (!state.cluster_barrier[lane])
      warp.report(FindingKind::barrier_mismatch, [&] {
        return fmt::format("lane {} waits for the barrier of the cluster without having arrived", lane);
      });
    else
      complete = complete && state.cluster_barrier[lane]->complete;
  });
  if (!complete) return warp.block_for({Wait::For::cluster_barrier});
  const ClusterBarrier::Generation* last = nullptr;  // mostly the same in all lanes
  for_each_lane(active, [&](int lane) {
    const auto generation = std::move(state.cluster_barrier[lane]);
    if (!generation || generation.get() == last) return;
    last = generation.get();
    warp.acquire(generation->knowledge);
    state.initialisations.join(generation->initialisations);
  });
  return Outcome::next;
}

void decode_cluster_barrier(Decoding& decoding, Instruction& instruction) {
  const std::string_view operation = decoding.take_any();
  if (operation == "arrive") {
    instruction.run = run_cluster_arrive;
    instruction.immediate = !decoding.take("release") && decoding.take("relaxed");
  } else if (operation == "wait") {
    instruction.run = run_cluster_wait;
    decoding.take("acquire");
  } else {
    decoding.fail("the operation must be arrive or wait");
  }
  instruction.aligned = decoding.take("aligned");
  instruction.op_class = OpClass::barrier;
}

void decode_bar(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("warp"))
    decode_bar_warp(decoding, instruction);
  else
    decode_named_barrier(decoding, instruction);
}

void decode_barrier(Decoding& decoding, Instruction& instruction) {
  if (decoding.take("cluster"))
    decode_cluster_barrier(decoding, instruction);
  else
    decode_named_barrier(decoding, instruction);
}

// --- Fences (PTX ISA, "membar, fence") -------------------------------------------------------------------------------

Outcome run_nothing(Warp&, const Instruction&, LaneMask) { return Outcome::next; }

Outcome run_fence(Warp& warp, const Instruction&, LaneMask) {
  warp.block().state().of(warp).at_fence = warp.knowledge();
  warp.tick();
  return Outcome::next;
}

Outcome run_fence_async_proxy(Warp& warp, const Instruction&, LaneMask) {
  warp.fence_async_proxy();
  return Outcome::next;
}

Outcome run_fence_initialisations(Warp& warp, const Instruction&, LaneMask) {
  BlockState& state = warp.block().state();
  state.mbarriers.fence_initialisations(warp);
  state.of(warp).initialisation_fence = warp.clock();
  warp.tick();
  return Outcome::next;
}

void take_scope(Decoding& decoding) {
  if (!decoding.take("cta") && !decoding.take("cluster") && !decoding.take("gpu") && !decoding.take("sys"))
    decoding.fail("the scope must be cta, cluster, gpu or sys");
}

// Shared memory is all that has proxies here: fences of other memory do nothing.
void decode_proxy_fence(Decoding& decoding, Instruction& instruction) {
  instruction.run = run_nothing;
  if (decoding.take("alias")) return;
  if (decoding.take("tensormap::generic")) {
    if (!decoding.take("release") && !decoding.take("acquire")) decoding.fail("it must be a release or an acquire");
    take_scope(decoding);
    return;
  }
  if (!decoding.take("async")) decoding.fail("the proxy must be alias, async or tensormap::generic");
  if (decoding.take("global")) return;
  if (!decoding.take("shared::cta")) decoding.take("shared::cluster");
  instruction.run = run_fence_async_proxy;
}

void decode_fence(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::fence;
  if (decoding.take("proxy")) return decode_proxy_fence(decoding, instruction);
  if (decoding.take("mbarrier_init")) {
    if (!decoding.take("release") || !decoding.take("cluster")) decoding.fail("it must be .release.cluster");
    instruction.run = run_fence_initialisations;
    return;
  }
  // PTX has no default for the scope; acq_rel is that of the semantics.
  if (!decoding.take("sc") && !decoding.take("acq_rel") && !decoding.take("release")) decoding.take("acquire");
  take_scope(decoding);
  instruction.run = run_fence;
}

void decode_membar(Decoding& decoding, Instruction& instruction) {
  instruction.op_class = OpClass::fence;
  if (decoding.take("proxy")) return decode_proxy_fence(decoding, instruction);
  if (!decoding.take("cta") && !decoding.take("gl") && !decoding.take("sys"))
    decoding.fail("the level must be cta, gl or sys");
  instruction.run = run_fence;
}

// --- Addresses in other blocks ---------------------------------------------------------------------------------------

// PTX ISA, "mapa": the address in another block that corresponds to one in any.
template <class T>
Outcome run_mapa(Warp& warp, const Instruction& instruction, LaneMask active) {
  const T* const from = warp.read<T>(instruction.operand[1], active);
  const std::uint32_t* const ranks = warp.read<std::uint32_t>(instruction.operand[2], active);
  const std::size_t blocks = warp.cluster().blocks().size();
  T to[kLanes] = {};
  for_each_lane(active, [&](int lane) {
    if (ranks[lane] >= blocks)
      warp.report(FindingKind::bad_operand, [&] {
        return fmt::format("the rank must be less than {}, the blocks of the cluster, was {}", blocks, ranks[lane]);
      });
    const std::uint64_t window = from[lane] & ~std::uint64_t{UINT32_MAX};  // of a generic address
    to[lane] = static_cast<T>(window | (ranks[lane] % blocks) << kRankShift | (from[lane] & kOffsetMask));
  });
  warp.write(instruction.operand[0], to, active);
  return Outcome::next;
}

int take_address_bits(Decoding& decoding) {
  decoding.take("shared::cluster");
  if (decoding.take("u64")) return 64;
  if (!decoding.take("u32")) decoding.fail("the type must be u32 or u64");
  return 32;
}

void decode_mapa(Decoding& decoding, Instruction& instruction) {
  const int bits = take_address_bits(decoding);
  instruction.operand[0] = decoding.destination(0, bits);
  instruction.operand[1] = decoding.source(1, bits);
  instruction.operand[2] = decoding.source(2, 32);
  instruction.op_class = OpClass::integer;
  instruction.run = bits == 64 ? run_mapa<std::uint64_t> : run_mapa<std::uint32_t>;
}

// PTX ISA, "getctarank".
template <class T>
Outcome run_getctarank(Warp& warp, const Instruction& instruction, LaneMask active) {
  const T* const from = warp.read<T>(instruction.operand[1], active);
  std::uint32_t ranks[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) ranks[lane] = static_cast<std::uint32_t>(from[lane]) >> kRankShift;
  warp.write(instruction.operand[0], ranks, active);
  return Outcome::next;
}

void decode_getctarank(Decoding& decoding, Instruction& instruction) {
  const int bits = take_address_bits(decoding);
  instruction.operand[0] = decoding.destination(0, 32);
  instruction.operand[1] = decoding.source(1, bits);
  instruction.op_class = OpClass::integer;
  instruction.run = bits == 64 ? run_getctarank<std::uint64_t> : run_getctarank<std::uint32_t>;
}

}  // namespace

void add_barrier_operations(OperationTable& table) {
  table["bar"] = decode_bar;
  table["barrier"] = decode_barrier;
  table["fence"] = decode_fence;
  table["membar"] = decode_membar;
  table["mapa"] = decode_mapa;
  table["getctarank"] = decode_getctarank;
  add_mbarrier_operations(table);
}

}  // namespace flashjit::emulator
