// SPDX-License-Identifier: Apache-2.0
// For tests of a great many kernels: all of them; with FLASHJIT_TEST_ONE_IN=N one of each N neighbours, and with
// FLASHJIT_TEST_TURN=0, 1, ..., N - 1 each of them in turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace flashjit::tests {

class Sampling {
 public:
  std::size_t one_in() const { return one_in_; }
  // Which one of a group of neighbours: another one from group to group, so that what repeats along a list is not
  // always left out.
  std::size_t chosen_of(std::size_t group, std::size_t size) const { return (turn_ + group * 5 / 3) % size; }

 private:
  static std::size_t setting(const char* name, std::size_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : static_cast<std::size_t>(std::stoul(value));
  }
  const std::size_t one_in_ = std::max<std::size_t>(1, setting("FLASHJIT_TEST_ONE_IN", 1));
  const std::size_t turn_ = setting("FLASHJIT_TEST_TURN", 0);
};

template <typename T>
std::vector<T> sample(const std::vector<T>& all) {
  const Sampling sampling;
  const std::size_t size = sampling.one_in();
  std::vector<T> chosen;
  for (std::size_t first = 0, group = 0; first < all.size(); first += size, ++group)
    chosen.push_back(all[first + sampling.chosen_of(group, std::min(size, all.size() - first))]);
  return chosen;
}

// Of what loops go through, one after the other.
class Sampler {
 public:
  bool takes_next() {
    const std::size_t i = next_++, size = sampling_.one_in();
    return sampling_.chosen_of(i / size, size) == i % size;
  }

 private:
  const Sampling sampling_;
  std::size_t next_ = 0;
};

}  // namespace flashjit::tests
