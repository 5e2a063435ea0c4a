// SPDX-License-Identifier: Apache-2.0
#include "distributed/planned_call.h"

#include <fmt/format.h>

namespace flashjit::distributed {
namespace {

// More than a model has at a time. Beyond them all are forgotten.
constexpr std::size_t kMostPlanned = 256;

// All that decides what is planned, but for the sequences of packed shards.
std::string name_of(const Sizes& sizes, const Options& options, const Planning& planning) {
  const Kind kind = kind_of(planning.call, sizes, options, options.scheme);
  const Machine& machine = options.machine;
  return fmt::format("{}; {}; {} {} {} {} {} {}", kind.agreed, kind.sizes, machine.flops, machine.bytes,
                     machine.bytes_across, machine.exchange, machine.call, machine.backward_flops);
}

}  // namespace

std::shared_ptr<const PlannedCall> planned_call(const Workspace& work, const Sizes& sizes, const Options& options,
                                                const Planning& planning) {
  auto& known = work.kept().planned;
  const std::string name = name_of(sizes, options, planning);
  const auto found = known.find(name);
  if (found != known.end() && found->second->queries == options.queries && found->second->keys == options.keys)
    return found->second;
  const Scheme scheme = planning.scheme(sizes, options);
  auto made = std::make_shared<const PlannedCall>(PlannedCall{kind_of(planning.call, sizes, options, scheme),
                                                              planning.plan(scheme, options, work.rank()),
                                                              options.queries, options.keys});
  if (known.size() >= kMostPlanned) known.clear();
  known[name] = made;
  return made;
}

}  // namespace flashjit::distributed
