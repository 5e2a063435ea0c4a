// SPDX-License-Identifier: Apache-2.0
// A call: checked, planned, and run step by step.
#include <optional>
#include <utility>
#include <vector>

#include "distributed/host_heads.h"
#include "distributed/plan.h"
#include "distributed/reject.h"
#include "distributed/row_sum.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {
namespace {

constexpr std::int64_t kStrideStep = 8, kAlignment = 16;  // what attention() wants of rows

// What may not be found wrong by a kernel's call, when others wait for this rank already.
void check_rows(const char* name, const Tensor& tensor, const Dims& shape, DType dtype) {
  if (tensor.shape.size() != shape.size() || tensor.shape != shape)
    reject("{}: shape must be {}, was {}", name, to_string(shape), to_string(tensor.shape));
  if (tensor.dtype != dtype) reject("{}: dtype must be {}, was {}", name, to_string(dtype), to_string(tensor.dtype));
  if (is_empty(tensor)) return;
  if (tensor.strides[head_dim_dim] != 1)
    reject("{}: last dimension must be contiguous, had a stride of {}", name, tensor.strides[head_dim_dim]);
  for (int i = 0; i < head_dim_dim; ++i)
    if (tensor.shape[i] > 1 && (tensor.strides[i] < 0 || tensor.strides[i] % kStrideStep != 0))
      reject("{}: strides must be multiples of {} elements, were {}", name, kStrideStep, to_string(tensor.strides));
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment != 0)
    reject("{}: must be aligned to {} bytes, was at {}", name, kAlignment, fmt::ptr(tensor.data));
}

void check_lse(const Tensor& lse, const Dims& shape) {
  if (lse.dtype != DType::f32) reject("lse: dtype must be f32, was {}", to_string(lse.dtype));
  if (lse.shape != shape) reject("lse: shape must be {}, was {}", to_string(shape), to_string(lse.shape));
  if (shape[2] > 1 && lse.strides[2] != 1)
    reject("lse: last dimension must be contiguous, had a stride of {}", lse.strides[2]);
}

void check_sinks(const Tensor& sinks, const Sizes& sizes) {
  const bool of_batch = sinks.shape.size() == 2 && sinks.shape[0] == sizes.batch;
  if (sinks.dtype != DType::f32 || !(sinks.shape.size() == 1 || of_batch) ||
      sinks.shape[sinks.shape.size() - 1] != sizes.num_heads_q || sinks.strides[sinks.shape.size() - 1] != 1)
    reject("sinks: must be f32 [{}] or [{}, {}], contiguous, was {} {}", sizes.num_heads_q, sizes.batch,
           sizes.num_heads_q, to_string(sinks.dtype), to_string(sinks.shape));
}

Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}})
    if (tensor->shape.size() != head_dim_dim + 1)
      reject("{}: must have 4 dimensions over several GPUs, had {}", name, tensor->shape.size());
  return {q.shape[batch_dim],    q.shape[heads_dim],    k.shape[heads_dim],
          q.shape[head_dim_dim], v.shape[head_dim_dim], q.dtype};
}

struct Call {
  Engine& engine;
  Group& group;
  const Tensor &q, &k, &v;
  const Options& options;
  Sizes sizes = sizes_of(q, k, v);

  Dims out_shape() const {
    return {sizes.batch, options.queries.length(group.rank()), sizes.num_heads_q, sizes.head_dim_v};
  }
};

void check_group(const Engine& engine, const Group& group, const char* name, const Sharding& sharding) {
  if (sharding.ranks() != group.size())
    reject("{}: must be of {} ranks like the group, was of {}", name, group.size(), sharding.ranks());
  if (engine.emulates() != (group.transport().device() == kHostMemory))
    reject("group: must be over {}, where the engine computes, was not", engine.emulates() ? "host memory" : "GPUs");
}

void check(const Call& call) {
  const Options& options = call.options;
  const Sharding& keys = options.keys ? *options.keys : options.queries;
  check_group(call.engine, call.group, "queries", options.queries);
  check(call.sizes, options);
  const Sizes& sizes = call.sizes;
  const std::int64_t queries = options.queries.length(call.group.rank()), rows = keys.length(call.group.rank());
  check_rows("q", call.q, {sizes.batch, queries, sizes.num_heads_q, sizes.head_dim}, sizes.dtype);
  check_rows("k", call.k, {sizes.batch, rows, sizes.num_heads_kv, sizes.head_dim}, sizes.dtype);
  check_rows("v", call.v, {sizes.batch, rows, sizes.num_heads_kv, sizes.head_dim_v}, sizes.dtype);
  if (options.attention.lse) check_lse(*options.attention.lse, {sizes.batch, sizes.num_heads_q, queries});
  if (options.attention.sinks) check_sinks(*options.attention.sinks, sizes);
}

// Keys and values of a step: the node's own, or memory that they come to.
class Block {
 public:
  Block(const Workspace& work, const Plan& plan, const Step& step, const Tensor& k, const Tensor& v)
      : k_(k), v_(v), exchange_(work) {
    if (step.own) return;
    // Of a node's ranks, this one has to do with those that have its heads.
    const int of_host = plan.hosts.ranks_of_host, lane = work.transport().rank() % of_host;
    for (Tensor* tensor : {&k_, &v_}) {
      const Tensor own = *tensor;
      Dims shape = own.shape;
      shape[seqlen_dim] = step.block_rows;
      *tensor = memory_.emplace_back(work.allocate(own.dtype, shape));
      for (const Transfer& to : step.sends)
        exchange_.send(to.node * of_host + lane, rows(own, {to.rows.first, to.rows.count}));
      for (const Transfer& from : step.receives)
        exchange_.receive(from.node * of_host + lane, rows(*tensor, {from.rows.first, from.rows.count}));
    }
    exchange_.start();
  }
  void finish() { exchange_.finish(); }
  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }

 private:
  Tensor k_, v_;
  std::vector<DeviceTensor> memory_;
  ViewExchange exchange_;  // behind its memory, so that an unfinished one goes first
};

struct NodeTensors {
  Tensor q, k, v, out;
  std::optional<Tensor> lse;
};

std::vector<RowSum> sums_of(const Workspace& work, const Plan& plan, const NodeTensors& node,
                            const AttentionOptions& options) {
  const int host = work.transport().rank() / plan.hosts.ranks_of_host;
  const std::vector<Piece> spans = pieces(plan.hosts.queries_of(host));
  std::vector<std::int64_t> parts(spans.size());
  for (const Step& step : plan.schedule)
    for (const BlockCall& call : step.calls) ++parts[call.queries];
  std::vector<RowSum> sums;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const RowsView view{spans[i].row, spans[i].span.count};
    QueryRows of{rows(node.q, view), rows(node.out, view), std::nullopt};
    if (node.lse) of.lse = lse_rows(*node.lse, view);
    sums.emplace_back(work, of, options, parts[i]);
  }
  return sums;
}

void run(const Workspace& work, const Plan& plan, const NodeTensors& node, const AttentionOptions& options) {
  std::vector<RowSum> sums = sums_of(work, plan, node, options);
  const auto block_of = [&](std::size_t step) {
    return std::make_unique<Block>(work, plan, plan.schedule[step], node.k, node.v);
  };
  std::unique_ptr<Block> next = block_of(0);
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const std::unique_ptr<Block> block = std::move(next);
    block->finish();
    if (i + 1 < plan.schedule.size()) next = block_of(i + 1);
    for (const BlockCall& call : plan.schedule[i].calls) sums[call.queries].add(block->k(), block->v(), call);
  }
  for (RowSum& sum : sums) sum.finish(node.k, node.v);
}

// Numbers of heads, of those alone that this rank has.
std::optional<Tensor> of_heads(const std::optional<Tensor>& all, const RowRange& of) {
  if (!all) return all;
  Tensor some = *all;
  const int dim = some.shape.size() - 1;
  some.data = static_cast<float*>(some.data) + of.first;
  some.shape[dim] = of.count;
  return some;
}

void run_over_hosts(const Workspace& work, const Plan& plan, const Call& call, const Tensor& out) {
  const HostHeads shared(work, plan.hosts, call.sizes);
  AttentionOptions options = call.options.attention;
  const HostTensors host = shared.gather(call.q, call.k, call.v, options.lse.has_value());
  options.sinks = of_heads(options.sinks, shared.share().queries);
  options.alibi_slopes = of_heads(options.alibi_slopes, shared.share().queries);
  NodeTensors node{host.q, host.k, host.v, host.out, std::nullopt};
  if (host.lse) node.lse = host.lse->view();
  run(work, plan, node, options);
  shared.scatter(host, out, options.lse);
}

void run(const Call& call, const Tensor& out) {
  const Workspace work(call.engine, call.group, call.options.attention.stream);
  const Plan plan = plan_of(chosen_scheme(call.sizes, call.options), call.options, call.group.rank());
  try {
    if (plan.hosts.ranks_of_host > 1)
      run_over_hosts(work, plan, call, out);
    else
      run(work, plan, {call.q, call.k, call.v, out, call.options.attention.lse}, call.options.attention);
  } catch (...) {
    call.group.transport().abort();
    throw;
  }
}

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

}  // namespace

void attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Options& options) {
  const Call call{engine, group, q, k, v, options};
  check(call);
  check_rows("out", out, call.out_shape(), q.dtype);
  run(call, out);
}

DeviceTensor attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Options& options) {
  const Call call{engine, group, q, k, v, options};
  check(call);
  DeviceTensor out =
      DeviceTensor::allocate(q.dtype, call.out_shape(), options.attention.stream, group.transport().device());
  run(call, out);
  return out;
}

DeviceTensor gather(Engine& engine, Group& group, const Tensor& shard, const Sharding& sharding, Stream stream) {
  check_group(engine, group, "sharding", sharding);
  check_tensor(shard, "shard", sharding.length(group.rank()));
  const Workspace work(engine, group, stream);
  Dims shape = shard.shape;
  shape[seqlen_dim] = sharding.seqlen();
  DeviceTensor whole = work.allocate(shard.dtype, shape);
  ViewExchange exchange(work);
  for (int peer = 0; peer < group.size(); ++peer) {
    for (const Piece& piece : pieces(sharding.spans(group.rank()))) exchange.send(peer, rows(shard, in_shard(piece)));
    for (const Span& span : sharding.spans(peer)) exchange.receive(peer, rows(whole, in_whole(span)));
  }
  exchange.start();
  exchange.finish();
  return whole;
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
