// SPDX-License-Identifier: Apache-2.0
// Ranks of a group as threads of one process.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "flashjit/distributed.h"

namespace flashjit::tests {

// Does the same on each rank, in a thread of its own with the group that join() gives the rank. Returns what each
// threw, null where it threw nothing.
inline std::vector<std::exception_ptr> on_ranks(int ranks, const std::function<distributed::Group(int rank)>& join,
                                                const std::function<void(distributed::Group&)>& work) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        distributed::Group group = join(rank);
        work(group);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace flashjit::tests
