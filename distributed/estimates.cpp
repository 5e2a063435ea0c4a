// SPDX-License-Identifier: Apache-2.0
// What schemes of attention and of its gradients take, by which one is chosen.
#include <algorithm>

#include "distributed/rank_model.h"

namespace flashjit::distributed {
namespace {

constexpr std::int64_t kF32 = 4;

Estimate of_attention(const Sizes& sizes, const RankModel& model) {
  const std::int64_t element = static_cast<std::int64_t>(size_of(sizes.dtype)),
                     dims = sizes.head_dim + sizes.head_dim_v;
  const RowWidth of_keys{dims, element};
  const std::int64_t bytes = model.row_bytes(Side::keys, of_keys);
  Estimate found;
  model.add_shared_heads(found, {{sizes.head_dim, element}, of_keys, {sizes.head_dim_v, element}, {}});
  const Schedule& schedule = model.plan().schedule;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const Step& step = schedule[i];
    found.calls += static_cast<std::int64_t>(step.calls.size());
    found.bytes += model.received(step.receives, bytes);
    // What comes for the next step comes under this one's kernels; for the first step there is nothing to hide it.
    const double next = i + 1 < schedule.size() ? model.transfer_time(schedule[i + 1].receives, bytes) : 0;
    found.seconds += (i == 0 ? model.transfer_time(step.receives, bytes) : 0) +
                     std::max(model.compute_time(step, dims, model.machine().flops), next);
  }
  return found;
}

std::int64_t products_of_gradients(const Sizes& sizes) { return 3 * sizes.head_dim + 2 * sizes.head_dim_v; }

// Gradients of keys and values come back in f32 for the rows that were sent, under the kernels of the next block.
void add_ring_of_gradients(Estimate& found, const Sizes& sizes, const RankModel& model) {
  const std::int64_t dims = sizes.head_dim + sizes.head_dim_v;
  const std::int64_t there = model.row_bytes(Side::keys, {dims, static_cast<std::int64_t>(size_of(sizes.dtype))}),
                     back = model.row_bytes(Side::keys, {dims, kF32});
  const Schedule& schedule = model.plan().schedule;
  double returned = 0;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const Step& step = schedule[i];
    found.calls += static_cast<std::int64_t>(step.calls.size());
    found.bytes += model.received(step.receives, there) + model.received(step.sends, back);
    const double next = i + 1 < schedule.size() ? model.transfer_time(schedule[i + 1].receives, there) : 0;
    found.seconds += std::max(model.compute_time(step, products_of_gradients(sizes), model.machine().backward_flops),
                              next + returned);
    returned = model.transfer_time(step.sends, back);
  }
  found.seconds += returned;
}

// dq by the keys that come, and then dk and dv by the queries that come: nothing hides what comes, and kernels make all
// gradients whichever are wanted.
void add_gathered_gradients(Estimate& found, const Sizes& sizes, const RankModel& model) {
  const std::int64_t element = static_cast<std::int64_t>(size_of(sizes.dtype));
  const auto add = [&](const Step& step, std::int64_t bytes) {
    found.calls += static_cast<std::int64_t>(step.calls.size());
    found.bytes += model.received(step.receives, bytes);
    found.seconds += model.transfer_time(step.receives, bytes) +
                     model.compute_time(step, products_of_gradients(sizes), model.machine().backward_flops);
  };
  add(model.plan().schedule.front(), model.row_bytes(Side::keys, {sizes.head_dim + sizes.head_dim_v, element}));
  add(all_gather_schedule(mirrored(model.plan().hosts.nodes()), model.node()).front(),
      model.row_bytes(Side::queries, {sizes.head_dim + 2 * sizes.head_dim_v, element}) +
          model.row_bytes(Side::queries, {1, kF32}));
}

Estimate of_gradients(const Sizes& sizes, const RankModel& model) {
  const std::int64_t element = static_cast<std::int64_t>(size_of(sizes.dtype));
  const RowWidth of_keys{sizes.head_dim + sizes.head_dim_v, element};
  Estimate found;
  model.add_shared_heads(
      found, {{sizes.head_dim + 2 * sizes.head_dim_v, element}, of_keys, {sizes.head_dim, element}, of_keys});
  if (model.plan().scheme == Scheme::all_gather && model.plan().hosts.count() > 1)
    add_gathered_gradients(found, sizes, model);
  else
    add_ring_of_gradients(found, sizes, model);
  return found;
}

}  // namespace

std::vector<Estimate> estimates(const Sizes& sizes, const Options& options) {
  return estimates_of(sizes, options, {why_not, plan_of, of_attention});
}

std::vector<Estimate> gradient_estimates(const Sizes& sizes, const Options& options) {
  return estimates_of(sizes, options, {why_no_gradients, plan_of_gradients, of_gradients});
}

}  // namespace flashjit::distributed
