// SPDX-License-Identifier: Apache-2.0
// Device tensors sharded and gathered.
#include "distributed/checks.h"
#include "distributed/positions.h"
#include "distributed/rehearsal.h"
#include "distributed/reject.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {
namespace {

void check_tensor(const Tensor& tensor, const char* name, std::int64_t length) {
  if (tensor.shape.size() != head_dim_dim + 1) reject("{}: must have 4 dimensions, had {}", name, tensor.shape.size());
  Dims shape = tensor.shape;
  shape[seqlen_dim] = length;
  if (tensor.dtype != DType::f16 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f32)
    reject("{}: dtype must be f16, bf16 or f32, was {}", name, to_string(tensor.dtype));
  check_rows(name, tensor, shape, tensor.dtype);
  if (shape[head_dim_dim] % kStrideStep != 0)
    reject("{}: head_dim must be a multiple of {}, was {}", name, kStrideStep, shape[head_dim_dim]);
}

RowsView in_whole(const Span& span) { return {span.first, span.count, span.step}; }
RowsView in_shard(const Piece& piece) { return {piece.row, piece.span.count, 1}; }

void check_shard(const Engine& engine, const Group& group, const Tensor& shard, const Sharding& sharding) {
  check_group(engine, group, "sharding", sharding);
  check_tensor(shard, "shard", sharding.length(group.rank()));
}

Dims whole_shape(const Tensor& shard, const Sharding& sharding) {
  Dims shape = shard.shape;
  shape[seqlen_dim] = sharding.seqlen();
  return shape;
}

// That all ranks know: their shards may differ in length.
Kind kind_of_gather(const Tensor& shard, const Sharding& sharding) {
  return {fmt::format("gather of {}", to_string(shard.dtype)),
          fmt::format("{} {}", to_string(whole_shape(shard, sharding)), to_string(sharding.layout()))};
}

void gather(const Workspace& work, const Tensor& shard, const Tensor& whole, const Sharding& sharding) {
  ViewExchange exchange(work);
  for (int peer = 0; peer < work.size(); ++peer) {
    for (const Piece& piece : pieces(sharding.spans(work.rank()))) exchange.send(peer, rows(shard, in_shard(piece)));
    for (const Span& span : sharding.spans(peer)) exchange.receive(peer, rows(whole, in_whole(span)));
  }
  exchange.start();
  exchange.finish();
}

}  // namespace

DeviceTensor gather(Engine& engine, Group& group, const Tensor& shard, const Sharding& sharding, Stream stream) {
  check_shard(engine, group, shard, sharding);
  return perform(engine, group, stream, kind_of_gather(shard, sharding), [&](const Workspace& work) {
    DeviceTensor whole = work.allocate(shard.dtype, whole_shape(shard, sharding));
    gather(work, shard, whole, sharding);
    return whole;
  });
}

void gather(Engine& engine, Group& group, const Tensor& shard, const Tensor& whole, const Sharding& sharding,
            Stream stream) {
  check_shard(engine, group, shard, sharding);
  check_rows("whole", whole, whole_shape(shard, sharding), shard.dtype);
  perform(engine, group, stream, kind_of_gather(shard, sharding),
          [&](const Workspace& work) { gather(work, shard, whole, sharding); });
}

DeviceTensor shard(Engine& engine, Group& group, const Tensor& whole, const Sharding& sharding, Stream stream) {
  check_group(engine, group, "sharding", sharding);
  check_tensor(whole, "whole", sharding.seqlen());
  const Workspace work(engine, group, stream);
  Dims shape = whole.shape;
  shape[seqlen_dim] = sharding.length(group.rank());
  DeviceTensor own = work.allocate(whole.dtype, shape);
  for (const Piece& piece : pieces(sharding.spans(group.rank())))
    if (!is_empty(rows(own, in_shard(piece)))) work.copy(rows(whole, in_whole(piece.span)), rows(own, in_shard(piece)));
  return own;
}

}  // namespace flashjit::distributed
