// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/counters.h"

namespace flashjit::runtime {
namespace {

struct Field {
  const char* name;
  std::uint64_t Counters::*counter;
};

#define FLASHJIT_FIELD(name) \
  { #name, &Counters::name }
constexpr Field kFields[] = {
    FLASHJIT_FIELD(memory_hits),    FLASHJIT_FIELD(user_hits),     FLASHJIT_FIELD(system_hits),
    FLASHJIT_FIELD(bundle_hits),    FLASHJIT_FIELD(embedded_hits), FLASHJIT_FIELD(misses),
    FLASHJIT_FIELD(compiles),       FLASHJIT_FIELD(quarantined),   FLASHJIT_FIELD(write_failures),
    FLASHJIT_FIELD(waits),          FLASHJIT_FIELD(wait_timeouts), FLASHJIT_FIELD(evicted),
    FLASHJIT_FIELD(bytes_read),     FLASHJIT_FIELD(bytes_written), FLASHJIT_FIELD(tunings),
    FLASHJIT_FIELD(timed_launches), FLASHJIT_FIELD(records_used),
};
#undef FLASHJIT_FIELD
static_assert(sizeof(Counters) == std::size(kFields) * sizeof(std::uint64_t), "every counter has a name");

}  // namespace

cache::Totals counted_since(const Counters& before, const Counters& now) {
  cache::Totals counted;
  for (const Field& field : kFields) {
    if (now.*field.counter > before.*field.counter) counted[field.name] = now.*field.counter - before.*field.counter;
  }
  return counted;
}

Counters to_counters(const cache::Totals& totals) {
  Counters counters;
  for (const Field& field : kFields) {
    if (const auto total = totals.find(field.name); total != totals.end()) counters.*field.counter = total->second;
  }
  return counters;
}

}  // namespace flashjit::runtime
