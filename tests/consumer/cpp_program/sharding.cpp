// SPDX-License-Identifier: Apache-2.0
// A user's program that needs nothing but the library for several GPUs, and of that nothing which needs a GPU.
#include <flashjit/distributed.h>
#include <flashjit/error.h>

#include <cstdio>

int main() {
  using namespace flashjit;
  try {
    distributed::Sharding(distributed::Layout::zigzag, 10, 0);
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    return distributed::Sharding(distributed::Layout::zigzag, 10, 4).length(0) == 3 ? 0 : 1;
  }
  return 1;
}
