// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "runtime/kernels/ptxas_log.h"

using flashjit::runtime::parse_ptxas_log;
using flashjit::runtime::PtxasUsage;

TEST_CASE("the figures of ptxas are read from both of its spellings") {
  const PtxasUsage thirteen = parse_ptxas_log(
      "ptxas info    : Function properties for k2\n"
      "ptxas         .     1272 bytes stack frame, 1264 bytes spill stores, 1812 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 0 barriers, 1272 bytes cumulative stack size\n");
  CHECK(thirteen.registers == 32);
  CHECK(thirteen.stack_bytes == 1272);
  CHECK(thirteen.spill_bytes == 1264 + 1812);
  const PtxasUsage twelve = parse_ptxas_log(
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 168 registers, 400 bytes cmem[0]\n");
  CHECK(twelve.registers == 168);
  CHECK(twelve.stack_bytes == 0);
  CHECK(twelve.spill_bytes == 0);
}

TEST_CASE("of several functions the largest figures count") {
  const PtxasUsage usage = parse_ptxas_log("Used 40 registers, Used 255 registers, Used 32 registers");
  CHECK(usage.registers == 255);
}

TEST_CASE("a log without figures, or with absurd ones, gives zeros") {
  CHECK(parse_ptxas_log("").registers == 0);
  CHECK(parse_ptxas_log(" registers and  bytes stack frame").registers == 0);
  CHECK(parse_ptxas_log("99999999999999999999 registers").registers == 0);
}
