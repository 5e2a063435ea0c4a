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
#include "distributed/planned_call.h"
#include "distributed/row_parts.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {
namespace {

struct NodeTensors {
  Tensor q, k, v, out;
  std::optional<Tensor> lse;
};

// What the queries of a node make of one block after the other.
class BlockAttention {
 public:
  // calls: how many there will be. A single one writes its result where it belongs.
  BlockAttention(const Workspace& work, const NodeTensors& node, const AttentionOptions& options, std::size_t calls)
      : work_(work),
        node_(node),
        options_(options),
        lse_(calls > 1 && !node.lse ? make_lse() : DeviceTensor()),
        parts_(work, {node.out, calls > 1 && !node.lse ? std::optional<Tensor>(lse_) : node.lse},
               [this](const RowRange& rows) { attend_to_nothing(rows); }) {}

  // beside_exchange: while the next block comes.
  void attend(const Tensor& k, const Tensor& v, const Sight& call, bool beside_exchange) {
    AttentionOptions options = options_of_part(work_, options_, call, node_.q.shape[batch_dim]);
    if (!parts_.is_first(call.queries)) options.sinks.reset();
    const RowsView keys{call.keys.first, call.keys.count};
    attend(call.queries, rows(k, keys), rows(v, keys), parts_.make(call.queries), options, beside_exchange);
  }
  void finish() { parts_.finish({node_.out, node_.lse}); }

 private:
  DeviceTensor make_lse() const {
    const Dims& shape = node_.out.shape;
    return work_.allocate(DType::f32, {shape[batch_dim], shape[heads_dim], shape[seqlen_dim]});
  }
  void attend(const RowRange& queries, const Tensor& k, const Tensor& v, const Attended::View& into,
              AttentionOptions options, bool beside_exchange) const {
    options.lse = into.lse;
    const Tensor q = rows(node_.q, {queries.first, queries.count});
    if (beside_exchange)
      work_.attention_beside_exchange(q, k, v, into.out, options);
    else
      work_.attention(q, k, v, into.out, options);
  }
  // Rows that see nothing, whatever functions and masks say: of sinks they have theirs.
  void attend_to_nothing(const RowRange& queries) const {
    AttentionOptions options = options_;
    options.causal = false;
    options.window = {};
    options.score.reset();
    options.mask.reset();
    options.bias.reset();
    const RowsView none{0, 0};
    const std::optional<Tensor> lse = node_.lse || !lse_.data() ? node_.lse : std::optional<Tensor>(lse_);
    attend(queries, rows(node_.k, none), rows(node_.v, none), Attended::rows({node_.out, lse}, queries), options,
           false);
  }

  const Workspace& work_;
  const NodeTensors& node_;
  const AttentionOptions& options_;
  const DeviceTensor lse_;  // where parts are joined, and nobody asked for it
  RowParts<Attended> parts_;
};

void run(const Workspace& work, const Plan& plan, const NodeTensors& node, const AttentionOptions& options) {
  std::size_t calls = 0;
  for (const Step& step : plan.schedule) calls += step.calls.size();
  BlockAttention attention(work, node, options, calls);
  const auto block_of = [&](std::size_t step) {
    return std::make_unique<Block>(work, plan.hosts.ranks_of_host, plan.schedule[step],
                                   std::vector<Tensor>{node.k, node.v});
  };
  std::unique_ptr<Block> next = block_of(0);
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const std::unique_ptr<Block> block = std::move(next);
    block->finish();
    const bool is_last = i + 1 == plan.schedule.size();
    if (!is_last) next = block_of(i + 1);
    for (const Sight& call : plan.schedule[i].calls)
      attention.attend(block->tensor(0), block->tensor(1), call, !is_last);
  }
  attention.finish();
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

constexpr Planning kPlanning{"attention", chosen_scheme, plan_of};

// A call, checked and planned.
struct CheckedCall {
  CheckedCall(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v, const Options& given)
      : call(engine, group, q, k, v, given),
        planned(planned_call(Workspace(engine, group, given.attention.stream), call.sizes, given, kPlanning)) {}

  GivenCall call;
  std::shared_ptr<const PlannedCall> planned;
};

void run(const Workspace& work, const CheckedCall& checked, const NodeTensors& own, const AttentionOptions& options) {
  const Plan& plan = checked.planned->plan;
  if (plan.hosts.ranks_of_host > 1)
    run_over_hosts(work, plan, checked.call.sizes, own, options);
  else
    run(work, plan, own, options);
}

}  // namespace

void attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Options& options) {
  const CheckedCall checked(engine, group, q, k, v, options);
  check_rows("out", out, checked.call.out_shape(), q.dtype);
  const AttentionOptions& of = options.attention;
  perform(engine, group, of.stream, checked.planned->kind, [&](const Workspace& work) {
    run(work, checked, {q, k, v, out, of.lse}, of);
  });
}

DeviceTensor attention(Engine& engine, Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Options& options) {
  const CheckedCall checked(engine, group, q, k, v, options);
  const AttentionOptions& of = options.attention;
  return perform(engine, group, of.stream, checked.planned->kind, [&](const Workspace& work) {
    DeviceTensor out = work.allocate(q.dtype, checked.call.out_shape());
    run(work, checked, {q, k, v, out, of.lse}, of);
    return out;
  });
}

}  // namespace flashjit::distributed
