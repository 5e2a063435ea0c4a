// SPDX-License-Identifier: Apache-2.0
// Attention: checked, planned, and run step by step.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/block.h"
#include "distributed/checks.h"
#include "distributed/host_heads.h"
#include "distributed/part.h"
#include "distributed/plan.h"
#include "distributed/rehearsal.h"
#include "distributed/row_sum.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {
namespace {

struct NodeTensors {
  Tensor q, k, v, out;
  std::optional<Tensor> lse;
};

std::vector<RowSum> sums_of(const Workspace& work, const Plan& plan, const NodeTensors& node,
                            const AttentionOptions& options) {
  const int host = work.rank() / plan.hosts.ranks_of_host;
  const std::vector<Piece> spans = pieces(plan.hosts.queries_of(host));
  std::vector<std::int64_t> parts(spans.size());
  for (const Step& step : plan.schedule)
    for (const BlockCall& call : step.calls) ++parts[call.queries];
  std::vector<RowSum> sums;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const RowsView view{spans[i].row, spans[i].span.count};
    QueryRows of{rows(node.q, view), rows(node.out, view), std::nullopt};
    if (node.lse) of.lse = lse_rows(*node.lse, view);
    AttentionOptions of_span = options;
    if (options.bias) of_span.bias = query_rows(*options.bias, {view.first, view.count});
    sums.emplace_back(work, of, of_span, parts[i]);
  }
  return sums;
}

void run(const Workspace& work, const Plan& plan, const NodeTensors& node, const AttentionOptions& options) {
  std::vector<RowSum> sums = sums_of(work, plan, node, options);
  const auto block_of = [&](std::size_t step) {
    return std::make_unique<Block>(work, plan.hosts.ranks_of_host, plan.schedule[step],
                                   std::vector<Tensor>{node.k, node.v});
  };
  std::unique_ptr<Block> next = block_of(0);
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const std::unique_ptr<Block> block = std::move(next);
    block->finish();
    if (i + 1 < plan.schedule.size()) next = block_of(i + 1);
    for (const BlockCall& call : plan.schedule[i].calls)
      sums[call.queries].add(block->tensor(0), block->tensor(1), call);
  }
  for (RowSum& sum : sums) sum.finish(node.k, node.v);
}

void run_over_hosts(const Workspace& work, const Plan& plan, const Sizes& sizes, const NodeTensors& own,
                    AttentionOptions options) {
  const HostHeads shared(work, plan.hosts, sizes);
  const DeviceTensor q = shared.allocate(Side::queries, own.q.dtype, sizes.head_dim),
                     k = shared.allocate(Side::keys, own.k.dtype, sizes.head_dim),
                     v = shared.allocate(Side::keys, own.v.dtype, sizes.head_dim_v),
                     out = shared.allocate(Side::queries, own.out.dtype, sizes.head_dim_v),
                     lse = own.lse ? shared.allocate_lse() : DeviceTensor();
  ViewExchange there(work), back(work);
  shared.gather(there, Side::queries, own.q, q);
  shared.gather(there, Side::keys, own.k, k);
  shared.gather(there, Side::keys, own.v, v);
  there.start();
  there.finish();
  options.sinks = of_heads(options.sinks, shared.share().queries);
  options.alibi_slopes = of_heads(options.alibi_slopes, shared.share().queries);
  run(work, plan, {q, k, v, out, own.lse ? std::optional<Tensor>(lse) : std::nullopt}, options);
  if (own.lse)
    shared.scatter(back, Partial{out, lse}, Partial{own.out, *own.lse});
  else
    shared.scatter(back, Side::queries, out, own.out);
  back.start();
  back.finish();
}

// A call, checked and planned.
struct PlannedCall {
  PlannedCall(const Engine& engine, const Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
              const Options& given)
      : call(engine, group, q, k, v, given),
        plan(plan_of(chosen_scheme(call.sizes, given), given, group.rank())),
        kind(kind_of("attention", call.sizes, given, plan.scheme)) {}

  GivenCall call;
  Plan plan;
  Kind kind;
};

void run(const Workspace& work, const PlannedCall& planned, const NodeTensors& own, const AttentionOptions& options) {
  if (planned.plan.hosts.ranks_of_host > 1)
    run_over_hosts(work, planned.plan, planned.call.sizes, own, options);
  else
    run(work, planned.plan, own, options);
}

}  // namespace

void attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Options& options) {
  const PlannedCall planned(engine, group, q, k, v, options);
  check_rows("out", out, planned.call.out_shape(), q.dtype);
  const AttentionOptions& of = options.attention;
  perform(engine, group, of.stream, planned.kind, [&](const Workspace& work) {
    run(work, planned, {q, k, v, out, of.lse}, of);
  });
}

DeviceTensor attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Options& options) {
  const PlannedCall planned(engine, group, q, k, v, options);
  const AttentionOptions& of = options.attention;
  return perform(engine, group, of.stream, planned.kind, [&](const Workspace& work) {
    DeviceTensor out = work.allocate(q.dtype, planned.call.out_shape());
    run(work, planned, {q, k, v, out, of.lse}, of);
    return out;
  });
}

}  // namespace flashjit::distributed
