// SPDX-License-Identifier: Apache-2.0
// Stands in for NCCL: ranks are threads, memory is the host's, and nothing blocks. What goes on a stream is done, in
// its order, when something asks how far the stream has come (driver.cpp).
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/nccl_transport/stand_ins.h"

// Of libcuda.so.1's stand-in: runs work in the order of the stream; work says whether it is done.
extern "C" void stand_in_enqueue(void* stream, std::function<bool()>* work);

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 4, kInProgress = 7;

using Id = std::array<char, 128>;
using Bytes = std::vector<unsigned char>;

struct World {
  std::map<std::pair<int, int>, std::deque<Bytes>> messages;
  std::set<int> ranks;
  int size = 0;
};

std::mutex mutex;
std::map<int, World> worlds;
std::set<int> lost;
int made = 0, aborts = 0, destroyed = 0, open_groups = 0;

}  // namespace

struct ncclComm {
  int world, rank, size;
  bool aborted = false;
};

namespace {

std::deque<ncclComm> communicators;  // all that were made: work on streams still looks at one that was aborted

struct Pending {
  std::function<bool()> work;
  void* stream;
};
thread_local std::vector<Pending> sends, receives;

World& of(ncclComm* comm) { return worlds[comm->world]; }

// Sends of a group go first, so that no receive is in the way of what its peer waits for.
void flush() {
  for (std::vector<Pending>* all : {&sends, &receives}) {
    for (Pending& of_message : *all) stand_in_enqueue(of_message.stream, &of_message.work);
    all->clear();
  }
}

}  // namespace

extern "C" {

void stand_in_reset() {
  const std::lock_guard lock(mutex);
  worlds.clear(), lost.clear();
  aborts = destroyed = open_groups = 0;
}
void stand_in_lose_rank(int rank) {
  const std::lock_guard lock(mutex);
  lost.insert(rank);
}
int stand_in_aborts() { return aborts; }
int stand_in_destroyed() { return destroyed; }
int stand_in_open_groups() { return open_groups; }

int ncclGetUniqueId(Id* id) {
  const std::lock_guard lock(mutex);
  id->fill(0);
  (*id)[0] = static_cast<char>(++made);
  return kSuccess;
}
int ncclCommInitRankConfig(ncclComm** comm, int size, Id id, int rank, void*) {
  const std::lock_guard lock(mutex);
  *comm = &communicators.emplace_back(ncclComm{id[0], rank, size});
  of(*comm).size = size;
  of(*comm).ranks.insert(rank);
  return kInProgress;
}
int ncclCommFinalize(ncclComm*) { return kInProgress; }
int ncclCommDestroy(ncclComm*) {
  const std::lock_guard lock(mutex);
  ++destroyed;
  return kSuccess;
}
int ncclCommAbort(ncclComm* comm) {
  const std::lock_guard lock(mutex);
  ++aborts;
  comm->aborted = true;
  return kSuccess;
}
int ncclCommGetAsyncError(ncclComm* comm, int* state) {
  const std::lock_guard lock(mutex);
  *state = static_cast<int>(of(comm).ranks.size()) < comm->size ? kInProgress : kSuccess;
  return kSuccess;
}
int ncclCommCount(ncclComm* comm, int* size) { return *size = comm->size, kSuccess; }
int ncclCommUserRank(ncclComm* comm, int* rank) { return *rank = comm->rank, kSuccess; }
int ncclCommCuDevice(ncclComm* comm, int* device) { return *device = comm->rank, kSuccess; }
int ncclGroupStart() {
  const std::lock_guard lock(mutex);
  ++open_groups;
  return kSuccess;
}
int ncclGroupEnd() {
  {
    const std::lock_guard lock(mutex);
    --open_groups;
  }
  flush();
  return kInProgress;
}
int ncclSend(const void* memory, std::size_t count, int, int peer, ncclComm* comm, void* stream) {
  if (peer == comm->rank || peer < 0 || peer >= comm->size) return kInvalidArgument;
  sends.push_back({[=] {
                     const std::lock_guard lock(mutex);
                     if (comm->aborted) return true;
                     if (lost.count(comm->rank) != 0) return false;
                     const auto* first = static_cast<const unsigned char*>(memory);
                     of(comm).messages[{comm->rank, peer}].emplace_back(first, first + count);
                     return true;
                   },
                   stream});
  return kSuccess;
}
int ncclRecv(void* memory, std::size_t count, int, int peer, ncclComm* comm, void* stream) {
  if (peer == comm->rank || peer < 0 || peer >= comm->size) return kInvalidArgument;
  receives.push_back({[=] {
                        const std::lock_guard lock(mutex);
                        if (comm->aborted) return true;
                        std::deque<Bytes>& messages = of(comm).messages[{peer, comm->rank}];
                        if (messages.empty()) return false;
                        std::memcpy(memory, messages.front().data(), std::min(count, messages.front().size()));
                        messages.pop_front();
                        return true;
                      },
                      stream});
  return kSuccess;
}
const char* ncclGetErrorString(int) { return "an error of the stand-in"; }
}
