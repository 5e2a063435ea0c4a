// SPDX-License-Identifier: Apache-2.0
// Scheme and plan of a call, which a group keeps: models make the same calls again and again, and to plan one can take
// the host longer than short sequences take the GPU.
#pragma once

#include <memory>
#include <optional>

#include "distributed/plan.h"
#include "distributed/rehearsal.h"

namespace flashjit::distributed {

struct PlannedCall {
  Kind kind;
  Plan plan;
  // What it was planned for: its name in the group's memory has no more than a digest of packed sequences.
  Sharding queries;
  std::optional<Sharding> keys;
};

// How calls of one name are planned.
struct Planning {
  const char* call;
  Scheme (*scheme)(const Sizes& sizes, const Options& options);
  Plan (*plan)(Scheme scheme, const Options& options, int rank);
};

// Of a call that was checked. Throws Error(unsupported) where the scheme is none for it.
std::shared_ptr<const PlannedCall> planned_call(const Workspace& work, const Sizes& sizes, const Options& options,
                                                const Planning& planning);

}  // namespace flashjit::distributed
