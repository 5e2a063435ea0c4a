// SPDX-License-Identifier: Apache-2.0
// Gradients. Nothing is added up across ranks: whoever makes a gradient has all that it is a sum over.
#include <stdexcept>
#include <vector>

#include "distributed/block.h"
#include "distributed/checks.h"
#include "distributed/host_heads.h"
#include "distributed/plan.h"
#include "distributed/reject.h"
#include "distributed/support.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {
namespace {

struct Given {
  Tensor dout, q, k, v, out, lse;
};
struct Into {
  Tensor dq, dk, dv;
};

std::string why_no_gradients(Scheme scheme, const Sizes& sizes, const Options& options) {
  const int ranks = options.queries.ranks();
  if (ranks == 1) return "";
  if (scheme != Scheme::all_gather && scheme != Scheme::all_to_all)
    return fmt::format("scheme: must be all_gather or all_to_all for gradients, was {}", to_string(scheme));
  if (scheme == Scheme::all_gather && options.queries.layout() == Layout::striped &&
      positions_matter(options.attention))
    return "queries: layout must be contiguous or zigzag for gradients by scheme all_gather, was striped";
  if (scheme == Scheme::all_to_all && sizes.num_heads_kv % ranks != 0)
    return fmt::format("num_heads_kv: must be a multiple of the {} ranks for gradients by scheme all_to_all, was {}",
                       ranks, sizes.num_heads_kv);
  return "";
}

Scheme scheme_of_gradients(const Sizes& sizes, const Options& options) {
  if (options.scheme != Scheme::automatic) {
    const std::string problem = why_no_gradients(options.scheme, sizes, options);
    if (!problem.empty()) throw Error(ErrorCode::unsupported, problem);
    return chosen_scheme(sizes, options);
  }
  std::string problem;
  for (const Estimate& estimate : estimates(sizes, options)) {
    const std::string why = why_no_gradients(estimate.scheme, sizes, options);
    if (why.empty()) return estimate.scheme;
    problem = why;
  }
  throw Error(ErrorCode::unsupported, problem);
}

// Calls on parts of this rank's rows, by the positions of which gradients there are of which.
class GatheredGradients {
 public:
  GatheredGradients(const Workspace& work, const Nodes& nodes, const Given& given, const Into& into,
                    const AttentionOptions& options, const BackwardOptions& backward)
      : work_(work), nodes_(nodes), given_(given), into_(into), options_(options), backward_(backward) {
    options_.causal = false;  // windows of sights say it
    options_.stream = work.stream();
  }

  void of_queries() const {
    const Step step = all_gather_schedule(nodes_, work_.transport().rank()).front();
    Block keys(work_, 1, step, {given_.k, given_.v});
    keys.finish();
    for (const Piece& own : pieces(own_spans(nodes_.queries))) {
      const std::vector<Pair> calls = pairs({own}, pieces(step.block));
      for (const Pair& call : calls)
        differentiate(call, given_, {keys.tensor(0), keys.tensor(1)}, {rows(into_.dq, call.queries), {}, {}});
      const std::int64_t done = calls.empty() ? 0 : calls.front().queries.count;
      clear(into_.dq, given_.q, {own.row + done, own.span.count - done});
    }
  }

  // The same with queries and keys in each other's place, under the mask that says by whom a key is seen.
  void of_keys() const {
    const Nodes mirrored{nodes_.keys, nodes_.queries, {nodes_.mask.right, nodes_.mask.left}};
    const Step step = all_gather_schedule(mirrored, work_.transport().rank()).front();
    Block queries(work_, 1, step, {given_.dout, given_.q}, Partial{given_.out, given_.lse});
    queries.finish();
    const Given of{queries.tensor(0), queries.tensor(1),     given_.k,
                   given_.v,          queries.results().out, queries.results().lse};
    for (const Piece& own : pieces(own_spans(nodes_.keys))) {
      const std::vector<Pair> calls = pairs(pieces(step.block), {own});
      for (const Pair& call : calls)
        differentiate(call, of, {given_.k, given_.v}, {{}, rows(into_.dk, call.keys), rows(into_.dv, call.keys)});
      const RowsView seen = calls.empty() ? RowsView{own.row, 0} : calls.front().keys;
      const std::int64_t before = seen.first - own.row, end = seen.first + seen.count;
      for (const RowsView& unseen : {RowsView{own.row, before}, RowsView{end, own.row + own.span.count - end}}) {
        clear(into_.dk, given_.k, unseen);
        clear(into_.dv, given_.v, unseen);
      }
    }
  }

 private:
  // Rows of queries and of keys that see each other.
  struct Pair {
    RowsView queries, keys;
    Window window;
    std::int64_t first_query, first_key;
  };
  struct KeyTensors {
    Tensor k, v;
  };

  const std::vector<Span>& own_spans(const std::vector<std::vector<Span>>& of_nodes) const {
    return of_nodes[static_cast<std::size_t>(work_.transport().rank())];
  }

  // Of spans without gaps what one sees is one range, and stands in one piece of what was gathered.
  std::vector<Pair> pairs(const std::vector<Piece>& queries, const std::vector<Piece>& keys) const {
    std::vector<Pair> found;
    for (const Piece& by : queries)
      for (const Piece& of : keys)
        if (const std::optional<Sight> view = sight(by.span, of.span, nodes_.mask))
          found.push_back({{by.row, view->queries},
                           {of.row + view->keys.first, view->keys.count},
                           view->window,
                           by.span.first - nodes_.query_shift,
                           of.span.first + view->keys.first});
    if (found.size() > 1) throw std::logic_error("gradients of rows are in more than one call");
    return found;
  }

  void differentiate(const Pair& call, const Given& of, const KeyTensors& keys, const GradientTensors& into) const {
    AttentionOptions options = options_;
    options.window = call.window;
    if (options.score || options.mask) {
      options.query_offsets = work_.constant(call.first_query, of.q.shape[batch_dim]);
      options.key_offsets = work_.constant(call.first_key, of.q.shape[batch_dim]);
    }
    work_.engine().attention_backward(rows(of.dout, call.queries), rows(of.q, call.queries), rows(keys.k, call.keys),
                                      rows(keys.v, call.keys), rows(of.out, call.queries),
                                      lse_rows(of.lse, call.queries), into, options, backward_);
  }

  // Attention that sees no key gives 0.
  void clear(const Tensor& gradient, const Tensor& of, const RowsView& view) const {
    if (is_empty(rows(gradient, view))) return;
    AttentionOptions options;
    options.stream = work_.stream();
    const Tensor none = rows(of, {0, 0});
    work_.engine().attention(rows(of, view), none, none, rows(gradient, view), options);
  }

  const Workspace& work_;
  const Nodes& nodes_;
  const Given& given_;
  const Into& into_;
  AttentionOptions options_;
  const BackwardOptions& backward_;
};

void run_by_heads(const Workspace& work, const Hosts& hosts, const Sizes& sizes, const Given& own, const Into& into,
                  AttentionOptions options, const BackwardOptions& backward) {
  const HostHeads shared(work, hosts, sizes);
  const auto queries = [&](std::int64_t head_dim) { return shared.allocate(Side::queries, sizes.dtype, head_dim); };
  const auto keys = [&](std::int64_t head_dim) { return shared.allocate(Side::keys, sizes.dtype, head_dim); };
  const DeviceTensor dout = queries(sizes.head_dim_v), q = queries(sizes.head_dim), out = queries(sizes.head_dim_v),
                     k = keys(sizes.head_dim), v = keys(sizes.head_dim_v), lse = shared.allocate_lse();
  const DeviceTensor dq = queries(sizes.head_dim), dk = keys(sizes.head_dim), dv = keys(sizes.head_dim_v);
  ViewExchange there(work), back(work);
  shared.gather(there, Side::queries, own.dout, dout);
  shared.gather(there, Side::queries, own.q, q);
  shared.gather(there, Side::keys, own.k, k);
  shared.gather(there, Side::keys, own.v, v);
  shared.gather(there, Partial{own.out, own.lse}, Partial{out, lse});
  there.start();
  there.finish();
  options.sinks = of_heads(options.sinks, shared.share().queries);
  options.alibi_slopes = of_heads(options.alibi_slopes, shared.share().queries);
  work.engine().attention_backward(dout, q, k, v, out, lse, GradientTensors{dq.view(), dk.view(), dv.view()}, options,
                                   backward);
  shared.scatter(back, Side::queries, dq, into.dq);
  shared.scatter(back, Side::keys, dk, into.dk);
  shared.scatter(back, Side::keys, dv, into.dv);
  back.start();
  back.finish();
}

Tensor required(const char* name, const std::optional<Tensor>& gradient) {
  if (!gradient) reject("{}: must be given, was not", name);
  return *gradient;
}

Into checked_into(const GivenCall& call, const Given& given, const GradientTensors& into) {
  for (const auto& [name, is_given] : {std::pair{"dbias", into.dbias.has_value()},
                                       {"dslopes", into.dslopes.has_value()},
                                       {"dsinks", into.dsinks.has_value()}})
    if (is_given)
      throw Error(ErrorCode::unsupported, fmt::format("{}: must not be given over several GPUs, was", name));
  const Into found{required("dq", into.dq), required("dk", into.dk), required("dv", into.dv)};
  check_rows("dq", found.dq, given.q.shape, call.sizes.dtype);
  check_rows("dk", found.dk, given.k.shape, call.sizes.dtype);
  check_rows("dv", found.dv, given.v.shape, call.sizes.dtype);
  return found;
}

void check_gradients(const GivenCall& call, const Given& given, const Options& options,
                     const BackwardOptions& backward) {
  if (options.attention.lse) reject("options: lse must not be given for gradients, was");
  check_rows("dout", given.dout, call.out_shape(), call.sizes.dtype);
  check_rows("out", given.out, call.out_shape(), call.sizes.dtype);
  check_lse(given.lse, call.lse_shape());
  for (const auto& [name, is_given] :
       {std::pair{"dlse", backward.dlse.has_value()}, {"variant", backward.variant.has_value()}})
    if (is_given)
      throw Error(ErrorCode::unsupported, fmt::format("{}: must not be given over several GPUs, was", name));
}

// A call for gradients, checked and planned.
struct PlannedGradients {
  PlannedGradients(const Engine& engine, const Group& group, const Given& given, const Options& options,
                   const BackwardOptions& backward)
      : call(engine, group, given.q, given.k, given.v, options) {
    check_gradients(call, given, options, backward);
    hosts = plan_of(scheme_of_gradients(call.sizes, options), options, group.rank()).hosts;
  }

  GivenCall call;
  Hosts hosts;
};

void run(const Workspace& work, const PlannedGradients& plan, const Given& given, const Into& into,
         const AttentionOptions& options, const BackwardOptions& backward) {
  if (work.transport().size() == 1 || plan.hosts.ranks_of_host > 1) {
    run_by_heads(work, plan.hosts, plan.call.sizes, given, into, options, backward);
    return;
  }
  const Nodes nodes = plan.hosts.nodes();
  const GatheredGradients gradients(work, nodes, given, into, options, backward);
  gradients.of_queries();
  gradients.of_keys();
}

}  // namespace

Gradients attention_backward(Engine& engine, Group& group, const Tensor& dout, const Tensor& q, const Tensor& k,
                             const Tensor& v, const Tensor& out, const Tensor& lse, const Options& options,
                             const BackwardOptions& backward) {
  const Given given{dout, q, k, v, out, lse};
  const PlannedGradients plan(engine, group, given, options, backward);
  const Workspace work(engine, group, options.attention.stream);
  return together(group, [&] {
    Gradients made{work.allocate(q.dtype, q.shape), work.allocate(k.dtype, k.shape), work.allocate(v.dtype, v.shape)};
    run(work, plan, given, {made.dq, made.dk, made.dv}, options.attention, backward);
    return made;
  });
}

void attention_backward(Engine& engine, Group& group, const Tensor& dout, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const GradientTensors& into,
                        const Options& options, const BackwardOptions& backward) {
  const Given given{dout, q, k, v, out, lse};
  const PlannedGradients plan(engine, group, given, options, backward);
  const Into checked = checked_into(plan.call, given, into);
  const Workspace work(engine, group, options.attention.stream);
  together(group, [&] { run(work, plan, given, checked, options.attention, backward); });
}

}  // namespace flashjit::distributed
