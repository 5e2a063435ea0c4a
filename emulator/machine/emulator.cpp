// SPDX-License-Identifier: Apache-2.0
#include "flashjit/emulator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "emulator/machine/cluster.h"

namespace flashjit::emulator {
namespace {

// Most blocks of a cluster, as on every device so far.
constexpr std::uint64_t kMostBlocksOfCluster = 16;
constexpr std::uint64_t kMostThreads = 1024;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("emulator: " + what); }

void check(const Launch& launch, const Kernel& kernel, Extent cluster) {
  if (launch.parameters.size() != kernel.parameter_bytes)
    refuse(fmt::format("parameters: must have the {} bytes that {} declares, had {}", kernel.parameter_bytes,
                       kernel.name, launch.parameters.size()));
  const std::uint64_t threads = launch.block.count();
  const std::uint64_t most = kernel.most_threads.count() == 0 ? kMostThreads : kernel.most_threads.count();
  if (threads == 0 || threads > most) refuse(fmt::format("block: must have 1 to {} threads, had {}", most, threads));
  if (cluster.count() == 0 || cluster.count() > kMostBlocksOfCluster)
    refuse(fmt::format("cluster: must have 1 to {} blocks, had {}", kMostBlocksOfCluster, cluster.count()));
  if (launch.grid.x % cluster.x != 0 || launch.grid.y % cluster.y != 0 || launch.grid.z % cluster.z != 0)
    refuse(fmt::format("grid: must be a multiple of the cluster {}x{}x{}, was {}x{}x{}", cluster.x, cluster.y,
                       cluster.z, launch.grid.x, launch.grid.y, launch.grid.z));
  if (launch.resident_clusters < 1)
    refuse(fmt::format("resident_clusters: must be at least 1, was {}", launch.resident_clusters));
}

// The clusters of a grid, a few at a time.
class Grid {
 public:
  explicit Grid(LaunchState& launch) : launch_(launch) {
    const Extent grid = launch.launch.grid, cluster = launch.cluster;
    shape_ = {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z};
  }

  void run() {
    const auto resident = static_cast<std::size_t>(launch_.launch.resident_clusters);
    while (true) {
      while (running_.size() < resident && next_ < shape_.count()) start();
      if (running_.empty()) return;
      const std::size_t at = launch_.random.below(running_.size());
      if (!running_[at]->advance()) running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
      if (const std::uint64_t most = launch_.launch.most_instructions;
          most != 0 && launch_.counters.warp_instructions > most)
        give_up();
    }
  }

 private:
  void start() {
    const auto x = static_cast<unsigned>(next_ % shape_.x), y = static_cast<unsigned>(next_ / shape_.x % shape_.y),
               z = static_cast<unsigned>(next_ / shape_.x / shape_.y);
    ++next_;
    running_.push_back(std::make_unique<Cluster>(launch_, Extent{x, y, z}));
  }

  [[noreturn]] void give_up() {
    for (const auto& block : running_.front()->blocks()) {
      for (const auto& warp : block->warps()) {
        for (const Warp::Place& place : warp->places()) {
          launch_.findings.add(FindingKind::no_progress, {block->id(), warp->index(), place.instruction}, [&] {
            return fmt::format("still here after {} instructions", launch_.counters.warp_instructions);
          });
        }
      }
    }
    throw StopLaunch();
  }

  LaunchState& launch_;
  Extent shape_;
  std::uint64_t next_ = 0;
  std::vector<std::unique_ptr<Cluster>> running_;
};

void collect_counters(LaunchState& launch) {
  Counters& counters = launch.counters;
  for (std::size_t i = 0; i < launch.executions.size(); ++i) {
    if (launch.executions[i] == 0) continue;
    const Statement& statement = launch.code.kernel->statements[i];
    counters.instructions.push_back({launch.findings.place(static_cast<std::uint32_t>(i)), statement.opcode,
                                     launch.executions[i], launch.conflicts[i]});
    counters.by_class[to_string(launch.code.instructions[i].op_class)] += launch.executions[i];
  }
}

}  // namespace

// --- Memory ----------------------------------------------------------------------------------------------------------

namespace {

void insert_sorted(std::vector<Memory::Buffer>& buffers, Memory::Buffer buffer) {
  const auto at = std::upper_bound(buffers.begin(), buffers.end(), buffer.begin,
                                   [](std::uintptr_t begin, const Memory::Buffer& b) { return begin < b.begin; });
  buffers.insert(at, std::move(buffer));
}

}  // namespace

void Memory::add(std::string name, void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  insert_sorted(buffers_, {std::move(name), begin, begin + bytes, true});
}

void Memory::add_read_only(std::string name, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  insert_sorted(buffers_, {std::move(name), begin, begin + bytes, false});
}

// --- Programs --------------------------------------------------------------------------------------------------------

struct Program::Impl {
  Module module;
  std::map<std::string, Code> kernels;
};

Program::Program(const std::string& ptx) : impl_(std::make_unique<Impl>()) {
  impl_->module = parse(ptx);
  for (const Kernel& kernel : impl_->module.kernels) impl_->kernels[kernel.name] = decode(impl_->module, kernel);
}

Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

std::vector<std::string> Program::entries() const {
  std::vector<std::string> names;
  for (const Kernel& kernel : impl_->module.kernels) names.push_back(kernel.name);
  return names;
}

Report Program::run(const std::string& entry, const Launch& launch, const Memory& memory) const {
  const auto start = std::chrono::steady_clock::now();
  const auto kernel = impl_->kernels.find(entry);
  if (kernel == impl_->kernels.end())
    refuse(fmt::format("entry: must be one of {}, was '{}'", fmt::join(entries(), ", "), entry));
  const Code& code = kernel->second;
  const Extent wanted = code.kernel->cluster;
  const Extent cluster = wanted.count() > 1 ? wanted : launch.cluster;
  check(launch, *code.kernel, cluster);
  LaunchState state(launch, memory, code, cluster);
  try {
    Grid(state).run();
  } catch (const StopLaunch&) {
    // The findings say why.
  }
  collect_counters(state);
  Report report;
  report.findings = state.findings.take();
  report.counters = std::move(state.counters);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace flashjit::emulator
