// SPDX-License-Identifier: Apache-2.0
#include "distributed/packed.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include "distributed/equal_parts.h"

namespace flashjit::distributed {
namespace {

// Some positions of a sequence.
struct Part {
  std::size_t sequence = 0;
  std::int64_t first = 0, count = 0;
};

// Pairs of queries and keys under a causal mask, but for a factor.
double work_of(const Part& part) {
  return static_cast<double>(part.count) * static_cast<double>(2 * part.first + part.count);
}

// Gives parts of sequences to ranks.
class Dealer {
 public:
  Dealer(const std::vector<std::int64_t>& cu_seqlens, int ranks)
      : cu_seqlens_(cu_seqlens), parts_(static_cast<std::size_t>(ranks)), work_(parts_.size()) {
    for (int rank = 0; rank < ranks; ++rank) room_.push_back(part_of(cu_seqlens.back(), ranks, rank).count);
  }

  std::vector<std::vector<Part>> in_equal_parts() {
    for (std::size_t sequence = 0; sequence < sequences(); ++sequence)
      for (std::int64_t first = 0; first < length(sequence);) {
        while (room_[at_] == 0) ++at_;
        first += give(at_, {sequence, first, std::min(room_[at_], length(sequence) - first)});
      }
    return parts_;
  }

  std::vector<std::vector<Part>> in_zigzag() {
    double all = 0;
    for (std::size_t i = 0; i < sequences(); ++i) all += work_of({i, 0, length(i)});
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < sequences(); ++i) {
      if (work_of({i, 0, length(i)}) * static_cast<double>(parts_.size()) > all)
        give_in_zigzag(i);
      else if (length(i) > 0)
        others.push_back(i);
    }
    std::stable_sort(others.begin(), others.end(), [&](std::size_t a, std::size_t b) { return length(a) > length(b); });
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) by_work_.insert({work_[rank], rank});
    for (const std::size_t sequence : others) give_whole(sequence);
    return parts_;
  }

 private:
  std::size_t sequences() const { return cu_seqlens_.size() - 1; }
  std::int64_t length(std::size_t sequence) const { return cu_seqlens_[sequence + 1] - cu_seqlens_[sequence]; }

  std::int64_t give(std::size_t rank, const Part& part) {
    parts_[rank].push_back(part);
    room_[rank] -= part.count;
    work_[rank] += work_of(part);
    return part.count;
  }

  void give_in_zigzag(std::size_t sequence) {
    const int ranks = static_cast<int>(parts_.size());
    for (int rank = 0; rank < ranks; ++rank)
      for (const Span& span : distributed::in_zigzag(length(sequence), ranks, rank))
        if (span.count > 0) give(static_cast<std::size_t>(rank), {sequence, span.first, span.count});
  }

  // To the rank with least work of those that have room. Where none has, its parts go to those with most room.
  void give_whole(std::size_t sequence) {
    const std::int64_t all = length(sequence);
    const auto fits = std::find_if(by_work_.begin(), by_work_.end(),
                                   [&](const auto& of_rank) { return room_[of_rank.second] >= all; });
    if (fits != by_work_.end()) return void(give_in_turn(fits->second, {sequence, 0, all}));
    for (std::int64_t first = 0; first < all;) {
      const auto most = static_cast<std::size_t>(std::max_element(room_.begin(), room_.end()) - room_.begin());
      first += give_in_turn(most, {sequence, first, std::min(room_[most], all - first)});
    }
  }

  std::int64_t give_in_turn(std::size_t rank, const Part& part) {
    by_work_.erase({work_[rank], rank});
    give(rank, part);
    by_work_.insert({work_[rank], rank});
    return part.count;
  }

  const std::vector<std::int64_t>& cu_seqlens_;
  std::vector<std::vector<Part>> parts_;
  std::vector<double> work_;
  std::vector<std::int64_t> room_;  // positions that ranks are short of their share; below 0 where they have more
  std::set<std::pair<double, std::size_t>> by_work_;
  std::size_t at_ = 0;  // the rank that is given parts
};

// The order in which sequences are numbered. Equal parts of all rows are what they are; otherwise first those that are
// in several parts, and then rank by rank.
std::vector<std::size_t> numbering(Layout layout, const std::vector<std::vector<Part>>& parts, std::size_t sequences) {
  std::vector<std::size_t> rank_of(sequences, 0), parts_of(sequences, 0), order;
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    for (const Part& part : parts[rank]) {
      ++parts_of[part.sequence];
      rank_of[part.sequence] = rank + 1;
    }
  for (std::size_t i = 0; i < sequences; ++i) {
    if (parts_of[i] > 1 || layout == Layout::contiguous) rank_of[i] = 0;
    if (parts_of[i] > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank_of[a] < rank_of[b]; });
  return order;
}

void append(std::vector<Span>& spans, const Span& span) {
  if (!spans.empty() && spans.back().first + spans.back().count == span.first)
    spans.back().count += span.count;
  else
    spans.push_back(span);
}

}  // namespace

PackedShards shared_out(Layout layout, const std::vector<std::int64_t>& cu_seqlens, int ranks) {
  Dealer dealer(cu_seqlens, ranks);
  std::vector<std::vector<Part>> parts = layout == Layout::zigzag ? dealer.in_zigzag() : dealer.in_equal_parts();
  const std::size_t sequences = cu_seqlens.size() - 1;
  PackedShards made;
  made.offsets.push_back(0);
  std::vector<std::int64_t> begins(sequences, 0);
  for (const std::size_t sequence : numbering(layout, parts, sequences)) {
    begins[sequence] = made.offsets.back();
    made.offsets.push_back(made.offsets.back() + cu_seqlens[sequence + 1] - cu_seqlens[sequence]);
  }
  for (std::vector<Part>& of_rank : parts) {
    const auto number = [&](const Part& part) { return begins[part.sequence] + part.first; };
    std::sort(of_rank.begin(), of_rank.end(), [&](const Part& a, const Part& b) { return number(a) < number(b); });
    std::vector<Span>&spans = made.spans.emplace_back(), &numbered = made.numbered.emplace_back();
    for (const Part& part : of_rank) {
      append(spans, {cu_seqlens[part.sequence] + part.first, part.count, 1});
      append(numbered, {number(part), part.count, 1});
    }
  }
  return made;
}

}  // namespace flashjit::distributed
