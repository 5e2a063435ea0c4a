// SPDX-License-Identifier: Apache-2.0
// Context parallelism: attention over sequences of which each of several GPUs has a part. In a library of its own,
// libflashjit_distributed. docs/distributed.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashjit/tensor.h"

namespace flashjit::distributed {

// --- Sharding
// ---------------------------------------------------------------------------------------------------------

// How the positions of a sequence are shared out among ranks.
enum class Layout : std::uint8_t {
  contiguous,  // rank r has the r-th of equal parts: for full attention and for windows
  zigzag,      // of twice as many parts the r-th from the front and the r-th from the back: balanced for a causal mask
  striped,     // positions r, r + ranks, r + 2 ranks, …: likewise
};
const char* to_string(Layout layout) noexcept;  // "contiguous", "zigzag", "striped"
Layout parse_layout(const std::string& text);   // throws Error(invalid_argument)

// The positions first, first + step, …, so many of them.
struct Span {
  std::int64_t first = 0, count = 0, step = 1;

  friend bool operator==(const Span& a, const Span& b) noexcept {
    return a.first == b.first && a.count == b.count && a.step == b.step;
  }
  friend bool operator!=(const Span& a, const Span& b) noexcept { return !(a == b); }
};

// Which positions of a sequence each rank has. A value: equal shardings shard alike, on whatever machine. Parts differ
// by one position in length at most, so any length is shared out; a rank may have none.
class Sharding {
 public:
  // Throws Error(invalid_argument) for a negative seqlen and fewer ranks than one.
  Sharding(Layout layout, std::int64_t seqlen, int ranks);

  Layout layout() const noexcept { return layout_; }
  std::int64_t seqlen() const noexcept { return seqlen_; }
  int ranks() const noexcept { return ranks_; }

  // How many positions a rank has. Throws Error(invalid_argument) for a rank that there is not.
  std::int64_t length(int rank) const;
  // Which ones, in the order of the rows of its tensors: in as few spans as there can be of step 1, or of striped
  // positions one of step ranks(). None is empty.
  std::vector<Span> spans(int rank) const;

  friend bool operator==(const Sharding& a, const Sharding& b) noexcept {
    return a.layout_ == b.layout_ && a.seqlen_ == b.seqlen_ && a.ranks_ == b.ranks_;
  }
  friend bool operator!=(const Sharding& a, const Sharding& b) noexcept { return !(a == b); }

 private:
  Layout layout_;
  std::int64_t seqlen_;
  int ranks_;
};

// What a rank has of a tensor in host memory, any dtype, whose dimension dim is the sequence: 1 in q, k, v and outputs,
// 2 in an LSE. Throws Error(invalid_argument).
HostTensor shard(const HostTensor& whole, const Sharding& sharding, int rank, int dim = 1);
// The tensor of which these are the shards, one for each rank. Throws Error(invalid_argument).
HostTensor gather(const std::vector<HostTensor>& shards, const Sharding& sharding, int dim = 1);

}  // namespace flashjit::distributed
