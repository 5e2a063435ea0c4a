// SPDX-License-Identifier: Apache-2.0
// Counters by name, as they are kept on disk.
#pragma once

#include "cache/totals.h"
#include "flashjit/engine.h"

namespace flashjit::runtime {

// What was counted after before: each counter that rose, under the name of the member.
cache::Totals counted_since(const Counters& before, const Counters& now);

// Names that are no counter's, as of another release, are left out.
Counters to_counters(const cache::Totals& totals);

}  // namespace flashjit::runtime
