// SPDX-License-Identifier: Apache-2.0
// Work that takes long, on threads of its own and watched by the calling one.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace flashjit::runtime {

// work(i) for every i below count, begun in their order, on at most `jobs` threads. work must not throw. The calling
// thread asks stop() before the first, after each and several times a second: when it says so, no other begins, and
// those that run are waited for. It tells done(n) when n of them have ended. The other threads call neither.
void run_jobs(std::size_t count, int jobs, const std::function<void(std::size_t)>& work,
              const std::function<bool()>& stop, const std::function<void(int)>& done);

// Kernels that this machine can compile at once: as many as it has cores, and fewer where memory is short.
int compile_jobs_of_machine();
// The same by the number of cores and the text of /proc/meminfo. At least 1; without that text one for each core.
int compile_jobs(unsigned cores, std::string_view meminfo);

}  // namespace flashjit::runtime
