// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/ptxas_log.h"

#include <algorithm>
#include <charconv>

namespace flashjit::runtime {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The largest number that stands right before one of these words.
int largest_before(std::string_view log, std::string_view words) {
  int largest = 0;
  for (std::size_t at = log.find(words); at != std::string_view::npos; at = log.find(words, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && is_digit(log[begin - 1])) --begin;
    int value = 0;
    std::from_chars(log.data() + begin, log.data() + at, value);
    largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

PtxasUsage parse_ptxas_log(std::string_view log) {
  PtxasUsage usage;
  usage.registers = largest_before(log, " registers");
  usage.stack_bytes = largest_before(log, " bytes stack frame");
  usage.spill_bytes = largest_before(log, " bytes spill stores") + largest_before(log, " bytes spill loads");
  return usage;
}

}  // namespace flashjit::runtime
