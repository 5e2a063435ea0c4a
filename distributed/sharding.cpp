// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>

#include "distributed/equal_parts.h"
#include "distributed/packed.h"
#include "distributed/reject.h"
#include "flashjit/distributed.h"

namespace flashjit::distributed {
namespace {

constexpr const char* kLayouts[] = {"contiguous", "zigzag", "striped"};

// Memory as a row of bytes for each place before the sequence's dimension and each position.
struct SequenceRows {
  SequenceRows(const char* name, const HostTensor& tensor, int dim) {
    if (dim < 0 || dim >= tensor.shape().size())
      reject("dim: must be from 0 to {} for {}, was {}", tensor.shape().size() - 1, name, dim);
    for (int i = 0; i < dim; ++i) before *= tensor.shape()[i];
    seqlen = tensor.shape()[dim];
    for (int i = dim + 1; i < tensor.shape().size(); ++i) bytes *= static_cast<std::size_t>(tensor.shape()[i]);
    bytes *= size_of(tensor.dtype());
  }

  std::size_t offset(std::int64_t place, std::int64_t position) const {
    return static_cast<std::size_t>(place * seqlen + position) * bytes;
  }

  std::int64_t before = 1, seqlen = 0;
  std::size_t bytes = 1;  // of a row
};

// Calls with the offsets, in bytes, of each row of the rank in the whole tensor and in its own.
void for_each_row(const SequenceRows& whole, const SequenceRows& own, const std::vector<Span>& spans,
                  const std::function<void(std::size_t, std::size_t)>& copy) {
  for (std::int64_t place = 0; place < whole.before; ++place) {
    std::int64_t row = 0;
    for (const Span& span : spans)
      for (std::int64_t i = 0; i < span.count; ++i)
        copy(whole.offset(place, span.first + i * span.step), own.offset(place, row++));
  }
}

Dims with_length(Dims shape, int dim, std::int64_t length) {
  shape[dim] = length;
  return shape;
}

const unsigned char* bytes_of(const HostTensor& tensor) { return static_cast<const unsigned char*>(tensor.data()); }
unsigned char* bytes_of(HostTensor& tensor) { return static_cast<unsigned char*>(tensor.data()); }

void check_shard(const HostTensor& shard, int rank, const HostTensor& first, const Sharding& sharding, int dim) {
  if (shard.dtype() != first.dtype())
    reject("shards[{}]: dtype must be {} like that of shards[0], was {}", rank, to_string(first.dtype()),
           to_string(shard.dtype()));
  if (shard.shape().size() != first.shape().size() || dim >= shard.shape().size())
    reject("shards[{}]: must have {} dimensions like shards[0], had {}", rank, first.shape().size(),
           shard.shape().size());
  const Dims wanted = with_length(first.shape(), dim, sharding.length(rank));
  if (shard.shape() != wanted)
    reject("shards[{}]: shape must be {}, was {}", rank, to_string(wanted), to_string(shard.shape()));
}

}  // namespace

const char* to_string(Layout layout) noexcept { return kLayouts[static_cast<int>(layout)]; }

Layout parse_layout(const std::string& text) {
  const auto found = std::find(std::begin(kLayouts), std::end(kLayouts), text);
  if (found == std::end(kLayouts)) reject("layout: must be contiguous, zigzag or striped, was \"{}\"", text);
  return static_cast<Layout>(found - std::begin(kLayouts));
}

Sharding::Sharding(Layout layout, std::int64_t seqlen, int ranks) : layout_(layout), seqlen_(seqlen), ranks_(ranks) {
  if (seqlen < 0) reject("seqlen: must be 0 or more, was {}", seqlen);
  if (ranks < 1) reject("ranks: must be 1 or more, was {}", ranks);
}

Sharding Sharding::packed(Layout layout, const std::vector<std::int64_t>& cu_seqlens, int ranks) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0)
    reject("cu_seqlens: must begin with 0, {}",
           cu_seqlens.empty() ? std::string("was empty") : fmt::format("began with {}", cu_seqlens.front()));
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i)
    if (cu_seqlens[i] < cu_seqlens[i - 1])
      reject("cu_seqlens: must not fall, fell from {} to {} behind sequence {}", cu_seqlens[i - 1], cu_seqlens[i],
             i - 1);
  if (layout == Layout::striped) reject("layout: must be contiguous or zigzag for packed sequences, was striped");
  Sharding made(layout, cu_seqlens.back(), ranks);
  made.cu_seqlens_ = cu_seqlens;
  made.shards_ = std::make_shared<const PackedShards>(shared_out(layout, cu_seqlens, ranks));
  return made;
}

const PackedShards* packed_shards(const Sharding& sharding) noexcept { return sharding.shards_.get(); }

std::vector<Span> Sharding::spans(int rank) const {
  if (rank < 0 || rank >= ranks_) reject("rank: must be from 0 to {}, was {}", ranks_ - 1, rank);
  if (shards_) return shards_->spans[static_cast<std::size_t>(rank)];
  std::vector<Span> spans;
  switch (layout_) {
    case Layout::contiguous:
      spans = {part_of(seqlen_, ranks_, rank)};
      break;
    case Layout::zigzag:
      spans = in_zigzag(seqlen_, ranks_, rank);
      break;
    case Layout::striped:
      spans = {{rank, (seqlen_ - rank + ranks_ - 1) / ranks_, ranks_}};
      break;
  }
  spans.erase(std::remove_if(spans.begin(), spans.end(), [](const Span& span) { return span.count <= 0; }),
              spans.end());
  return spans;
}

std::int64_t Sharding::length(int rank) const {
  std::int64_t length = 0;
  for (const Span& span : spans(rank)) length += span.count;
  return length;
}

HostTensor shard(const HostTensor& whole, const Sharding& sharding, int rank, int dim) {
  const SequenceRows from("whole", whole, dim);
  if (from.seqlen != sharding.seqlen())
    reject("whole: dimension {} must be {} long like the sharding, was {}", dim, sharding.seqlen(), from.seqlen);
  HostTensor own(whole.dtype(), with_length(whole.shape(), dim, sharding.length(rank)));
  for_each_row(from, SequenceRows("whole", own, dim), sharding.spans(rank),
               [&](std::size_t in_whole, std::size_t in_own) {
                 std::memcpy(bytes_of(own) + in_own, bytes_of(whole) + in_whole, from.bytes);
               });
  return own;
}

HostTensor gather(const std::vector<HostTensor>& shards, const Sharding& sharding, int dim) {
  if (shards.size() != static_cast<std::size_t>(sharding.ranks()))
    reject("shards: must be {}, one for each rank, were {}", sharding.ranks(), shards.size());
  const SequenceRows of_first("shards[0]", shards.front(), dim);
  HostTensor whole(shards.front().dtype(), with_length(shards.front().shape(), dim, sharding.seqlen()));
  const SequenceRows to("shards[0]", whole, dim);
  for (int rank = 0; rank < sharding.ranks(); ++rank) {
    const HostTensor& own = shards[static_cast<std::size_t>(rank)];
    check_shard(own, rank, shards.front(), sharding, dim);
    for_each_row(to, SequenceRows("shards[0]", own, dim), sharding.spans(rank),
                 [&](std::size_t in_whole, std::size_t in_own) {
                   std::memcpy(bytes_of(whole) + in_whole, bytes_of(own) + in_own, of_first.bytes);
                 });
  }
  return whole;
}

}  // namespace flashjit::distributed
