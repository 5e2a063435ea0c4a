// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/support/parallel.h"

using namespace flashjit;

TEST_CASE("turns come in order, and whoever fails passes its own") {
  for (const std::size_t fails : {std::size_t{0}, std::size_t{7}, std::size_t{20}}) {
    runtime::Turns turns;
    std::vector<std::size_t> order;
    const auto work = [&](std::size_t i) {
      const runtime::Turns::Turn turn(turns, i);
      if (i == fails) throw std::runtime_error("fails");
      if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      turn.wait();
      order.push_back(i);
    };
    if (fails < 20)
      CHECK_THROWS_WITH(runtime::parallel_for(20, work), "fails");
    else
      runtime::parallel_for(20, work);
    CHECK(std::is_sorted(order.begin(), order.end()));
    CHECK(order.size() >= std::min(fails, std::size_t{20}));
  }
}
