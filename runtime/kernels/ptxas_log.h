// SPDX-License-Identifier: Apache-2.0
// What ptxas -v says about a kernel.
#pragma once

#include <string_view>

namespace flashjit::runtime {

struct PtxasUsage {
  int registers = 0;    // per thread
  int stack_bytes = 0;  // of the largest frame
  int spill_bytes = 0;  // stores and loads together
};

// The largest figures in the log; 0 where it has none.
PtxasUsage parse_ptxas_log(std::string_view log);

}  // namespace flashjit::runtime
