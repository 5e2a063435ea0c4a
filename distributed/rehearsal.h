// SPDX-License-Identifier: Apache-2.0
// What all ranks do together, and how they find out before that one of them cannot. The first call of its kind is
// rehearsed: each rank goes through all of it, but that kernels are made and not launched and nothing is sent, and then
// ranks tell each other whether some engine refused. So what an engine has no kernel for, or what it does not take, is
// an error on all ranks before anything of the call was sent, and the group goes on. A later call of the kind with new
// sizes each rank rehearses for itself, as telling the others waits on the host, and batches of other lengths come with
// every step of a training; one with sizes that were there is not rehearsed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "distributed/workspace.h"

namespace flashjit::distributed {

// Of the message in which a rank tells another whether one has refused. Odd, as no message with rows is, so that who
// watches messages can tell them apart.
inline constexpr std::size_t kRefusalBytes = 499;

// What all ranks know of a call.
struct Kind {
  std::string agreed;  // by which they need kernels of the same problem: ranks agree on one call of each
  std::string sizes;   // lengths and numbers beside it
};
Kind kind_of(const char* call, const Sizes& sizes, const Options& options, Scheme scheme);

// Does something that ranks do together. If it throws on this rank, the others would wait in vain: the group is given
// up.
template <typename Work>
auto together(Group& group, const Work& work) {
  try {
    return work();
  } catch (...) {
    group.transport().abort();
    throw;
  }
}

// Throws on all ranks what the call throws on one, the one with the lowest number, and waits on the host; unless a call
// of this kind went well before: then what it throws on this rank alone.
void rehearse(Engine& engine, Group& group, Stream stream, const Kind& kind,
              const std::function<void(const Workspace&)>& call);

// Does a call on this rank, as all do: rehearsed first where it is the first of its kind.
template <typename Call>
auto perform(Engine& engine, Group& group, Stream stream, const Kind& kind, const Call& call) {
  rehearse(engine, group, stream, kind, [&](const Workspace& work) { call(work); });
  return together(group, [&] { return call(Workspace(engine, group, stream)); });
}

}  // namespace flashjit::distributed
