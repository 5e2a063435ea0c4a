// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine/copy_groups.h"

#include "emulator/machine/shared_address.h"

namespace flashjit::emulator {
namespace {

bool is_complete(const CopyGroup& group, bool only_reads) { return (only_reads ? group.reading : group.running) == 0; }

}  // namespace

void CopyGroups::commit(LaneMask lanes) {
  for_each_lane(lanes, [&](int lane) { ++commits_[lane]; });
  const auto take = [&](CopyGroup& group) {
    const LaneMask committing = group.uncommitted() & lanes;
    group.committers |= committing;
    for_each_lane(committing, [&](int lane) { group.number[lane] = commits_[lane]; });
    return committing != 0;
  };
  for (const auto& group : committed_) take(*group);
  if (!take(*open_)) return;
  committed_.push_back(std::move(open_));
  open_ = std::make_shared<CopyGroup>();
  ++clock_;
}

std::vector<std::shared_ptr<CopyGroup>> CopyGroups::seal() {
  std::vector<std::shared_ptr<CopyGroup>> running;
  for (const auto& group : committed_)
    if (group->running != 0) running.push_back(group);
  if (open_->running != 0) running.push_back(open_);
  ++clock_;
  return running;
}

CopyGroups::Progress CopyGroups::look(LaneMask lanes, std::uint64_t newest, bool only_reads) {
  // The lanes that wait for each group: a lane's groups are those that it committed.
  std::vector<LaneMask> waiting(committed_.size());
  for (std::size_t i = 0; i < committed_.size(); ++i)
    for_each_lane(committed_[i]->committers & lanes, [&](int lane) {
      if (commits_[lane] - committed_[i]->number[lane] >= newest) waiting[i] |= LaneMask{1} << lane;
    });

  Progress progress;
  bool all_before = true;  // are complete, and waited for by whoever issued them
  std::size_t forgettable = 0;
  for (std::size_t i = 0; i < committed_.size(); ++i) {
    CopyGroup& group = *committed_[i];
    const bool complete = is_complete(group, only_reads);
    if (waiting[i] != 0 && !complete) progress.complete = false;
    if (complete) group.waited_for_reads |= waiting[i];
    if (complete && !only_reads) group.waited |= waiting[i];
    const LaneMask waited = only_reads ? group.waited_for_reads : group.waited;
    all_before = all_before && complete && (group.issuers & ~waited) == 0;
    if (!all_before) continue;
    if (group.last != 0) progress.clock = group.last;
    if (group.running == 0 && forgettable == i) ++forgettable;
  }
  if (progress.complete)
    committed_.erase(committed_.begin(), committed_.begin() + static_cast<std::ptrdiff_t>(forgettable));
  return progress;
}

}  // namespace flashjit::emulator
