// SPDX-License-Identifier: Apache-2.0
// Gradients: checked, planned, and with heads shared out within hosts where that is the scheme.
#include "distributed/checks.h"
#include "distributed/gradients.h"
#include "distributed/host_heads.h"
#include "distributed/option_gradients.h"
#include "distributed/part.h"
#include "distributed/planned_call.h"
#include "distributed/reject.h"
#include "distributed/support.h"

namespace flashjit::distributed {
namespace {

// Of whole sequences: one call.
void call_for_gradients(const GradientTask& task) {
  const Given& of = task.given;
  const std::vector<Sight>& calls = task.plan.schedule.front().calls;  // none without queries
  const AttentionOptions options =
      calls.empty() ? task.options : options_of_part(task.work, task.options, calls.front(), of.q.shape[batch_dim]);
  task.work.attention_backward(
      of.dout, of.q, of.k, of.v, of.out, of.lse,
      {task.into.dq, task.into.dk, task.into.dv, task.into.dbias, task.into.dslopes, task.into.dsinks}, options,
      task.backward);
}

// What a node's rows add to the gradients of sinks: that does not depend on keys, given the LSE.
void sink_gradients(const GradientTask& task) {
  const Given& of = task.given;
  AttentionOptions options;
  options.sinks = task.options.sinks;
  GradientTensors into;
  into.dsinks = task.into.dsinks;
  task.work.attention_backward(of.dout, of.q, rows(of.k, {0, 0}), rows(of.v, {0, 0}), of.out, of.lse, into, options,
                               task.backward);
}

void run(const GradientTask& task) {
  if (task.plan.hosts.count() == 1) return call_for_gradients(task);
  if (task.into.dbias) task.work.clear_numbers(*task.into.dbias);  // of what is hidden, and in no call
  if (task.into.dsinks) sink_gradients(task);
  if (task.plan.scheme == Scheme::all_gather)
    gather_gradients(task);
  else
    ring_gradients(task);
}

void run_over_hosts(const GradientTask& task, const Sizes& sizes) {
  const HostHeads shared(task.work, task.plan.hosts, sizes);
  const auto queries = [&](std::int64_t head_dim) { return shared.allocate(Side::queries, sizes.dtype, head_dim); };
  const auto keys = [&](std::int64_t head_dim) { return shared.allocate(Side::keys, sizes.dtype, head_dim); };
  const DeviceTensor dout = queries(sizes.head_dim_v), q = queries(sizes.head_dim), out = queries(sizes.head_dim_v),
                     k = keys(sizes.head_dim), v = keys(sizes.head_dim_v), lse = shared.allocate_lse();
  const DeviceTensor dq = queries(sizes.head_dim), dk = keys(sizes.head_dim), dv = keys(sizes.head_dim_v);
  const Given& own = task.given;
  ViewExchange there(task.work), back(task.work);
  shared.gather(there, Side::queries, own.dout, dout);
  shared.gather(there, Side::queries, own.q, q);
  shared.gather(there, Side::keys, own.k, k);
  shared.gather(there, Side::keys, own.v, v);
  shared.gather(there, Partial{own.out, own.lse}, Partial{out, lse});
  there.start();
  there.finish();
  AttentionOptions options = task.options;
  options.sinks = of_heads(options.sinks, shared.share().queries);
  options.alibi_slopes = of_heads(options.alibi_slopes, shared.share().queries);
  const Given given{dout, q, k, v, out, lse};
  const Into into{dq, dk, dv, of_heads(task.into.dslopes, shared.share().queries),
                  of_heads(task.into.dsinks, shared.share().queries)};
  run({task.work, task.plan, given, into, options, task.backward});
  shared.scatter(back, Side::queries, dq, task.into.dq);
  shared.scatter(back, Side::keys, dk, task.into.dk);
  shared.scatter(back, Side::keys, dv, task.into.dv);
  back.start();
  back.finish();
}

Tensor required(const char* name, const std::optional<Tensor>& gradient) {
  if (!gradient) reject("{}: must be given, was not", name);
  return *gradient;
}

void check_option_gradient(const char* name, const std::optional<Tensor>& gradient, const char* of,
                           const std::optional<Tensor>& option) {
  if (!gradient) return;
  if (!option) reject("{}: must not be given without {}, was", name, of);
  if (gradient->dtype != DType::f32 || gradient->shape != option->shape || !is_packed(*gradient))
    reject("{}: must be f32 {} like {}, contiguous, was {} {}", name, to_string(option->shape), of,
           to_string(gradient->dtype), to_string(gradient->shape));
  if (!gradient->data && !is_empty(*gradient)) reject("{}: must point to its elements, was null", name);
}

void check_bias_gradient(const std::optional<Tensor>& dbias, const std::optional<Tensor>& bias) {
  if (!dbias) return;
  if (!bias) reject("dbias: must not be given without bias, was");
  if ((dbias->dtype != DType::f32 && dbias->dtype != bias->dtype) || dbias->shape != bias->shape || !is_packed(*dbias))
    reject("dbias: must be f32 or {} {} like bias, contiguous, was {} {}", to_string(bias->dtype),
           to_string(bias->shape), to_string(dbias->dtype), to_string(dbias->shape));
  if (!dbias->data && !is_empty(*dbias)) reject("dbias: must point to its elements, was null");
}

Into checked_into(const GivenCall& call, const Given& given, const GradientTensors& into,
                  const AttentionOptions& options) {
  check_bias_gradient(into.dbias, options.bias);
  check_option_gradient("dslopes", into.dslopes, "alibi_slopes", options.alibi_slopes);
  check_option_gradient("dsinks", into.dsinks, "sinks", options.sinks);
  const Into found{
      required("dq", into.dq), required("dk", into.dk), required("dv", into.dv), into.dslopes, into.dsinks, into.dbias};
  check_rows("dq", found.dq, given.q.shape, call.sizes.dtype);
  check_rows("dk", found.dk, given.k.shape, call.sizes.dtype);
  check_rows("dv", found.dv, given.v.shape, call.sizes.dtype);
  return found;
}

void check_gradients(const GivenCall& call, const Given& given, const Options& options,
                     const BackwardOptions& backward) {
  if (options.attention.lse) reject("options: lse must not be given for gradients, was");
  const Sizes& sizes = call.sizes;  // what has no backward is told before anything is sent
  validate(BackwardProblem{problem_of(sizes.dtype, static_cast<int>(sizes.head_dim), static_cast<int>(sizes.head_dim_v),
                                      options.attention)});
  check_rows("dout", given.dout, call.out_shape(), call.sizes.dtype);
  check_rows("out", given.out, call.out_shape(), call.sizes.dtype);
  check_lse(given.lse, call.lse_shape());
  for (const auto& [name, is_given] :
       {std::pair{"dlse", backward.dlse.has_value()}, {"variant", backward.variant.has_value()}})
    if (is_given)
      throw Error(ErrorCode::unsupported, fmt::format("{}: must not be given over several GPUs, was", name));
}

constexpr Planning kPlanning{"gradients", chosen_scheme_of_gradients, plan_of_gradients},
    kDeterministicPlanning{"deterministic gradients", chosen_scheme_of_gradients, plan_of_gradients};

// A call for gradients, checked and planned.
struct CheckedGradients {
  CheckedGradients(Engine& engine, Group& group, const Given& given, const Options& options,
                   const BackwardOptions& backward)
      : call(engine, group, given.q, given.k, given.v, options) {
    check_gradients(call, given, options, backward);
    planned = planned_call(Workspace(engine, group, options.attention.stream), call.sizes, options,
                           backward.deterministic ? kDeterministicPlanning : kPlanning);
  }
  Kind kind_into(const Into& into) const {
    const Kind& kind = planned->kind;
    return {kind.agreed + (into.dslopes ? ", dslopes" : "") + (into.dsinks ? ", dsinks" : "") +
                (into.dbias ? fmt::format(", dbias {}", to_string(into.dbias->dtype)) : ""),
            kind.sizes};
  }

  GivenCall call;
  std::shared_ptr<const PlannedCall> planned;
};

void run(const Workspace& work, const CheckedGradients& checked, const Given& given, const Into& into,
         const AttentionOptions& options, const BackwardOptions& backward) {
  std::optional<OptionGradient> of_slopes, of_sinks;
  Into shares = into;
  if (into.dslopes) shares.dslopes = of_slopes.emplace(work, *options.alibi_slopes).share();
  if (into.dsinks) shares.dsinks = of_sinks.emplace(work, *options.sinks).share();
  const GradientTask task{work, checked.planned->plan, given, shares, options, backward};
  if (task.plan.hosts.ranks_of_host > 1)
    run_over_hosts(task, checked.call.sizes);
  else
    run(task);
  if (of_slopes) of_slopes->write(*into.dslopes);
  if (of_sinks) of_sinks->write(*into.dsinks);
}

}  // namespace

Gradients attention_backward(Engine& engine, Group& group, const Tensor& dout, const Tensor& q, const Tensor& k,
                             const Tensor& v, const Tensor& out, const Tensor& lse, const Options& options,
                             const BackwardOptions& backward) {
  const Given given{dout, q, k, v, out, lse};
  const CheckedGradients checked(engine, group, given, options, backward);
  return perform(engine, group, options.attention.stream, checked.planned->kind, [&](const Workspace& work) {
    Gradients made{work.allocate(q.dtype, q.shape), work.allocate(k.dtype, k.shape), work.allocate(v.dtype, v.shape)};
    run(work, checked, given, {made.dq, made.dk, made.dv}, options.attention, backward);
    return made;
  });
}

void attention_backward(Engine& engine, Group& group, const Tensor& dout, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const GradientTensors& into,
                        const Options& options, const BackwardOptions& backward) {
  const Given given{dout, q, k, v, out, lse};
  const CheckedGradients checked(engine, group, given, options, backward);
  const Into places = checked_into(checked.call, given, into, options.attention);
  perform(engine, group, options.attention.stream, checked.kind_into(places),
          [&](const Workspace& work) { run(work, checked, given, places, options.attention, backward); });
}

}  // namespace flashjit::distributed
