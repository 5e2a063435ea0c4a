// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/mbarrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "emulator/machine/block_state.h"

namespace flashjit::emulator {
namespace {

Findings::Who who_is(Warp& warp) { return {warp.block().id(), warp.index(), warp.instruction()}; }

}  // namespace

// --- Initialisation --------------------------------------------------------------------------------------------------

void Mbarriers::initialise(Warp& warp, std::uint32_t offset, std::uint32_t count) {
  block_.shared().record_write(warp.accessor(), offset, kMbarrierBytes);
  written(offset, kMbarrierBytes);
  const auto [at, is_new] = barriers_.try_emplace(offset);
  Mbarrier& barrier = at->second;
  // The agent's clock never goes back, so phases go on where those of the last object at this place ended.
  const Agent agent = is_new ? warp.cluster().new_agent() : barrier.agent;
  const std::uint32_t phase = is_new ? 0 : (barrier.phase + 2) & ~1u;
  barrier = {};
  barrier.offset = offset;
  barrier.expected = barrier.pending = count;
  barrier.phase = barrier.first_phase = phase;
  barrier.agent = agent;
  barrier.initialiser = warp.agent();
  barrier.initialising_warp = warp.index();
  barrier.initialised_at = warp.clock();
  barrier.waiters.resize(block_.state().warps.size());
}

void Mbarriers::invalidate(Warp& warp, std::uint32_t offset) {
  Mbarrier* const barrier = find(warp, offset, User::own_block);
  if (!barrier) return;
  barrier->lost = true;
  block_.shared().record_write(warp.accessor(), offset, kMbarrierBytes);
  block_.shared().forget(offset, kMbarrierBytes);
}

void Mbarriers::fence_initialisations(const Warp& warp) {
  for (auto& [offset, barrier] : barriers_)
    if (barrier.initialiser == warp.agent() && barrier.fenced_at == 0) barrier.fenced_at = warp.clock();
}

void Mbarriers::written(std::uint32_t offset, std::uint32_t bytes) {
  if (barriers_.empty() || offset >= barriers_.rbegin()->first + kMbarrierBytes) return;
  const std::uint32_t first = offset < kMbarrierBytes ? 0 : offset - kMbarrierBytes + 1;
  for (auto at = barriers_.lower_bound(first); at != barriers_.end() && at->first < offset + bytes; ++at)
    at->second.lost = true;
}

const Mbarrier* Mbarriers::look(std::uint32_t offset) const {
  const auto at = barriers_.find(offset);
  return at == barriers_.end() ? nullptr : &at->second;
}

Mbarrier* Mbarriers::find(Warp& warp, std::uint32_t offset, User user) {
  const auto at = barriers_.find(offset);
  if (at == barriers_.end() || at->second.lost) {
    warp.report(FindingKind::mbarrier_not_initialised, [&] {
      return fmt::format("there is no mbarrier at {:#x}: {}", offset,
                         at == barriers_.end() ? "it was not initialised" : "it was invalidated or overwritten");
    });
    return nullptr;
  }
  check_initialisation(warp, at->second, user);
  return &at->second;
}

// An initialisation is an ordinary store: it must happen before the use, and for other blocks and for copies there must
// be a fence behind it (PTX ISA, "fence.mbarrier_init").
void Mbarriers::check_initialisation(Warp& warp, const Mbarrier& barrier, User user) {
  const Agent by = barrier.initialiser;
  const Knowledge& known = warp.knowledge();
  if (by == warp.agent() && user == User::own_block) return;
  const Clock relaxed = warp.block().state().of(warp).initialisations.of(by);
  if (known.seen.of(by) < barrier.initialised_at && relaxed < barrier.initialised_at) {
    warp.report(FindingKind::mbarrier_not_initialised, [&] {
      return fmt::format("nothing orders this after the initialisation of the mbarrier at {:#x} by warp {}",
                         barrier.offset, barrier.initialising_warp);
    });
    return;
  }
  if (user == User::own_block) return;
  const bool by_fence = barrier.fenced_at != 0 && std::max(known.seen.of(by), relaxed) >= barrier.fenced_at;
  if (by_fence || known.fenced.of(by) >= barrier.initialised_at) return;
  warp.report(FindingKind::missing_proxy_fence, [&] {
    return fmt::format("{} uses the mbarrier at {:#x}, without fence.mbarrier_init after its initialisation by warp {}",
                       user == User::copy ? "an asynchronous copy" : "another block", barrier.offset,
                       barrier.initialising_warp);
  });
}

// --- Arrivals and transactions ---------------------------------------------------------------------------------------

std::string Mbarriers::pending_text(const Mbarrier& barrier) {
  const std::string bytes = barrier.bytes == 0 ? "" : fmt::format(" and {} bytes", barrier.bytes);
  return fmt::format("{} of {} arrivals{} pending", barrier.pending, barrier.expected, bytes);
}

void Mbarriers::arrive(Warp& who, Mbarrier& barrier, const Arrival& arrival) {
  if (arrival.bytes != 0) expect_bytes(who, barrier, arrival.bytes);
  if (arrival.count > barrier.pending) {
    who.report(FindingKind::mbarrier_phase, [&] {
      return fmt::format("arrives {} times at the mbarrier at {:#x}: {}", arrival.count, barrier.offset,
                         pending_text(barrier));
    });
    return;
  }
  barrier.pending -= arrival.count;
  if (arrival.drops) barrier.expected -= arrival.count;
  if (!arrival.completes && barrier.pending == 0 && barrier.bytes == 0)
    who.report(FindingKind::mbarrier_phase, [&] {
      return fmt::format("completes a phase of the mbarrier at {:#x}, which .noComplete must not", barrier.offset);
    });
  settle(who, barrier);
}

void Mbarriers::expect_bytes(Warp& who, Mbarrier& barrier, std::uint32_t bytes) {
  barrier.bytes += bytes;
  barrier.last_bytes = who_is(who);
  if (barrier.bytes > kMostTransactionBytes)
    who.report(FindingKind::mbarrier_transaction, [&] {
      return fmt::format("the bytes that the mbarrier at {:#x} expects must be at most {}, were {}", barrier.offset,
                         kMostTransactionBytes, barrier.bytes);
    });
}

void Mbarriers::complete_bytes(Warp& who, Mbarrier& barrier, std::uint32_t bytes) {
  barrier.bytes -= bytes;
  barrier.last_bytes = who_is(who);
  settle(who, barrier);
}

void Mbarriers::land_bytes(Warp& issuer, const Ticket& ticket, std::uint32_t bytes) {
  const auto at = barriers_.find(ticket.offset);
  if (at == barriers_.end() || at->second.lost || at->second.first_phase > ticket.phase) {
    issuer.report(FindingKind::mbarrier_not_initialised, [&] {
      return fmt::format("the mbarrier at {:#x} was invalidated or overwritten before the copy had ended",
                         ticket.offset);
    });
    return;
  }
  Mbarrier& barrier = at->second;
  if (barrier.phase == ticket.phase) return complete_bytes(issuer, barrier, bytes);
  issuer.report(FindingKind::mbarrier_transaction, [&] {
    return fmt::format(
        "{} bytes have come for phase {} of the mbarrier at {:#x} (0 is the first), which had completed without them",
        bytes, ticket.phase - barrier.first_phase, barrier.offset);
  });
}

void Mbarriers::settle(Warp& who, Mbarrier& barrier) {
  if (barrier.pending != 0) return;
  if (barrier.bytes < 0) {
    who.report(FindingKind::mbarrier_transaction, [&] {
      return fmt::format("{} bytes more than expected have come to the mbarrier at {:#x}", -barrier.bytes,
                         barrier.offset);
    });
    barrier.bytes = 0;
  }
  if (barrier.bytes == 0) complete_phase(barrier);
}

void Mbarriers::complete_phase(Mbarrier& barrier) {
  // Who still waits for the phase before would not see that it is over: the parity is its own again.
  for (std::size_t warp = 0; warp < barrier.waiters.size(); ++warp) {
    const Mbarrier::Waiter& waiter = barrier.waiters[warp];
    if (!waiter.blocked || waiter.awaited == barrier.phase) continue;
    const Findings::Who who{block_.id(), static_cast<int>(warp), waiter.instruction};
    block_.cluster().launch().findings.add(FindingKind::mbarrier_phase, who, [&] {
      return fmt::format(
          "waits for phase {} of the mbarrier at {:#x} (0 is the first), and the next can complete before it has seen "
          "that",
          waiter.awaited - barrier.first_phase, barrier.offset);
    });
  }
  barrier.released = std::move(barrier.open);
  barrier.open = {};
  ++barrier.phase;
  barrier.released.seen.raise(barrier.agent, barrier.phase);
  barrier.pending = barrier.expected;
  block_.cluster().something_happened();
}

void Mbarriers::finish(bool copies_in_flight) {
  for (const auto& entry : barriers_) {
    const std::uint32_t offset = entry.first;
    const Mbarrier& barrier = entry.second;
    if (barrier.lost || barrier.bytes == 0 || (barrier.bytes > 0 && copies_in_flight)) continue;
    block_.cluster().launch().findings.add(FindingKind::mbarrier_transaction, barrier.last_bytes, [&] {
      if (barrier.bytes > 0)
        return fmt::format("when the block ends, the mbarrier at {:#x} still expects {} bytes", offset, barrier.bytes);
      return fmt::format("when the block ends, the mbarrier at {:#x} has got {} bytes that nobody has expected", offset,
                         -barrier.bytes);
    });
  }
}

}  // namespace flashjit::emulator
