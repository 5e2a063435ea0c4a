// SPDX-License-Identifier: Apache-2.0
// For tests of a great many kernels.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace flashjit::tests {

// All of them; with FLASHJIT_TEST_ONE_IN=N, which scripts/test sets without --all, the first and every N-th after it.
template <typename T>
std::vector<T> sample(const std::vector<T>& all) {
  const char* one_in = std::getenv("FLASHJIT_TEST_ONE_IN");
  const std::size_t step = one_in == nullptr ? 1 : std::stoul(one_in);
  std::vector<T> chosen;
  for (std::size_t i = 0; i < all.size(); i += step) chosen.push_back(all[i]);
  return chosen;
}

}  // namespace flashjit::tests
