// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/cluster.h"

#include <fmt/format.h>

#include <bit>

#include "emulator/machine/block_state.h"

namespace flashjit::emulator {
namespace {

constexpr std::uintptr_t kParameterAlignment = 64;  // of tensor maps
constexpr int kLongestTurn = 128;                   // instructions of one warp before another may run
constexpr int kLongestWait = 1000;                  // turns of others before the slow warp has one

std::byte* place_aligned(std::vector<std::byte>& storage, const std::byte* data, std::size_t bytes) {
  storage.resize(bytes + kParameterAlignment);
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(storage.data());
  std::byte* const aligned = storage.data() + (kParameterAlignment - begin % kParameterAlignment) % kParameterAlignment;
  std::copy_n(data, bytes, aligned);
  return aligned;
}

// "all lanes", "lane 5", "12 lanes".
std::string lanes_text(LaneMask lanes) {
  if (lanes == kAllLanes) return "all lanes";
  return std::popcount(lanes) == 1 ? fmt::format("lane {}", std::countr_zero(lanes))
                                   : fmt::format("{} lanes", std::popcount(lanes));
}

}  // namespace

// --- The launch ------------------------------------------------------------------------------------------------------

LaunchState::LaunchState(const Launch& launch_, const Memory& memory_, const Code& code_, Extent cluster_)
    : launch(launch_),
      memory(memory_),
      code(code_),
      cluster(cluster_),
      findings(code_, launch_.most_findings),
      random(launch_.seed),
      executions(code_.instructions.size()),
      conflicts(code_.instructions.size()) {
  parameters_at = place_aligned(parameters, launch.parameters.data(), launch.parameters.size());
  globals_at = place_aligned(globals, code.module->globals.data(), code.module->globals.size());
}

std::byte* LaunchState::global(Warp& warp, std::uint64_t address, std::size_t bytes, bool writes) {
  const auto inside = [&](const std::byte* begin, std::size_t size) {
    const auto from = reinterpret_cast<std::uintptr_t>(begin);
    return address >= from && address <= from + size && bytes <= from + size - address;
  };
  std::byte* const at = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  const auto& buffers = memory.buffers();
  const auto after = std::upper_bound(buffers.begin(), buffers.end(), address,
                                      [](std::uint64_t value, const Memory::Buffer& b) { return value < b.begin; });
  if (after != buffers.begin()) {
    const Memory::Buffer& buffer = after[-1];
    if (address < buffer.end || (bytes == 0 && address == buffer.end)) {
      if (bytes <= buffer.end - address && (buffer.writable || !writes)) return at;
      warp.report(FindingKind::global_out_of_bounds, [&] {
        if (!buffer.writable && writes) return fmt::format("writes to '{}', which is read-only", buffer.name);
        return fmt::format("{} {} bytes from byte {} of '{}', which has {}", writes ? "writes" : "reads", bytes,
                           address - buffer.begin, buffer.name, buffer.end - buffer.begin);
      });
      return nullptr;
    }
  }
  if (inside(globals_at, code.module->globals.size()) || (!writes && inside(parameters_at, launch.parameters.size())))
    return at;
  warp.report(FindingKind::global_out_of_bounds, [&] {
    const std::string before = after == buffers.begin() ? ""
                                                        : fmt::format(", {} bytes behind the end of '{}'",
                                                                      address - after[-1].end, after[-1].name);
    return fmt::format("{} {} bytes at {:#x}, which is in no buffer{}", writes ? "writes" : "reads", bytes, address,
                       before);
  });
  return nullptr;
}

// --- A block ---------------------------------------------------------------------------------------------------------

Block::Block(Cluster& cluster, unsigned rank, Extent id)
    : cluster_(cluster),
      rank_(rank),
      id_(id),
      shared_(static_cast<std::uint32_t>(cluster.launch().code.kernel->static_shared_bytes +
                                         cluster.launch().launch.dynamic_shared_bytes)),
      state_(std::make_unique<BlockState>(*this)) {
  shared_.on_write([this](std::uint32_t offset, std::uint32_t bytes) { state_->written(offset, bytes); });
  const std::uint64_t threads = cluster.launch().launch.block.count();
  for (std::uint64_t first = 0; first < threads; first += kLanes) {
    const std::uint64_t lanes = std::min<std::uint64_t>(kLanes, threads - first);
    const LaneMask live = lanes == kLanes ? kAllLanes : (LaneMask{1} << lanes) - 1;
    warps_.push_back(std::make_unique<Warp>(*this, static_cast<int>(first / kLanes), live));
  }
}

Block::~Block() = default;

bool Block::ended() const {
  return std::all_of(warps_.begin(), warps_.end(), [](const auto& warp) { return warp->ended(); });
}

// --- A cluster -------------------------------------------------------------------------------------------------------

Cluster::Cluster(LaunchState& launch, Extent id) : launch_(launch), id_(id) {
  const Extent shape = launch.cluster;
  for (unsigned rank = 0; rank < shape.count(); ++rank) {
    const Extent in_cluster{rank % shape.x, rank / shape.x % shape.y, rank / shape.x / shape.y};
    const Extent block{id.x * shape.x + in_cluster.x, id.y * shape.y + in_cluster.y, id.z * shape.z + in_cluster.z};
    blocks_.push_back(std::make_unique<Block>(*this, rank, block));
  }
  auto& warps = blocks_[random().below(blocks_.size())]->warps();
  if (random().one_in(2)) slow_ = warps[random().below(warps.size())].get();
}

Cluster::~Cluster() = default;

// One of those that can run, each with the same chance. The slow one only when it is alone, or when others had so many
// turns that they may be waiting for it in a loop: every warp of a running block makes progress, in the end.
Warp* Cluster::choose_warp() {
  Warp* chosen = nullptr;
  std::uint64_t found = 0;
  for (const auto& block : blocks_) {
    for (const auto& warp : block->warps()) {
      if (warp->ended() || !warp->can_run() || warp.get() == slow_) continue;
      if (random().one_in(++found)) chosen = warp.get();
    }
  }
  if (!slow_ || slow_->ended() || !slow_->can_run()) return chosen;
  if (chosen && ++turns_of_others_ < kLongestWait) return chosen;
  turns_of_others_ = 0;
  return slow_;
}

bool Cluster::advance() {
  if (!pending_.empty() && random().one_in(4)) complete_one();
  if (Warp* const warp = choose_warp()) {
    const int budget = 1 + static_cast<int>(random().below(kLongestTurn));
    running_ = warp;
    launch_.counters.warp_instructions += static_cast<std::uint64_t>(warp->run(budget));
    if (warp->ended() && warp->block().ended()) warp->block().state().finish();
    return true;
  }
  if (!pending_.empty()) {
    complete_one();
    return true;
  }
  const bool ended = std::all_of(blocks_.begin(), blocks_.end(), [](const auto& block) { return block->ended(); });
  if (!ended) report_deadlock();
  return false;
}

void Cluster::later(std::function<void()> operation) {
  pending_.push_back({std::move(operation), running_, running_->instruction()});
}

void Cluster::complete_one() {
  std::swap(pending_[random().below(pending_.size())], pending_.back());
  const Later operation = std::move(pending_.back());
  pending_.pop_back();
  running_ = operation.issuer;
  const std::uint32_t present = running_->set_instruction(operation.instruction);
  operation.run();
  running_->set_instruction(present);
  something_happened();
}

Cluster::SharedPlace Cluster::find_shared(Warp& warp, std::uint32_t address, std::uint32_t bytes, bool of_cluster) {
  const std::uint32_t rank = address >> kRankShift, offset = address & kOffsetMask;
  Block* const own = &warp.block();
  Block* const block = rank == own->rank() ? own : of_cluster && rank < blocks_.size() ? blocks_[rank].get() : nullptr;
  if (block && block->shared().contains(offset, bytes)) return {block, offset};
  warp.report(FindingKind::shared_out_of_bounds, [&] {
    if (!block) return fmt::format("{:#x} is an address of block {} of the cluster, not of this one", address, rank);
    return fmt::format("{} bytes at {:#x} do not lie in shared memory, which is from {:#x} to {:#x}", bytes, offset,
                       kFirstSharedOffset, block->shared().end());
  });
  return {};
}

// Each place where lanes wait is one finding. Where lanes of a warp wait for each other, that is the cause, and what
// the others wait for follows from it.
void Cluster::report_deadlock() {
  const auto report = [&](bool apart) {
    bool found = false;
    for (const auto& block : blocks_) {
      for (const auto& warp : block->warps()) {
        for (const Warp::Place& place : warp->places()) {
          if ((place.wait.what == Wait::For::convergence) != apart) continue;
          found = true;
          launch_.findings.add(apart ? FindingKind::unequal_participation : FindingKind::deadlock,
                               {block->id(), warp->index(), place.instruction}, [&] {
                                 return fmt::format("{} of warp {} wait for {}", lanes_text(place.lanes), warp->index(),
                                                    apart ? "the other lanes of the warp, which will not come"
                                                          : block->state().describe(place.wait));
                               });
        }
      }
    }
    return found;
  };
  if (!report(true)) report(false);
  throw StopLaunch();
}

}  // namespace flashjit::emulator
