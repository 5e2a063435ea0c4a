// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/plan.h"

#include "generator/arguments.h"
#include "generator/family.h"
#include "runtime/call/ragged.h"
#include "runtime/call/splits.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/reject.h"

namespace flashjit::runtime {
namespace {

constexpr const char* kMemoryDimNames[] = {"words"};
constexpr Rules kMemoryRules{kMemoryDimNames, 1, 1, alignof(generator::PlannedTile)};

struct SizeRow {
  const char* name;
  std::int64_t BatchPlan::Sizes::*size;
};
constexpr SizeRow kSizeRows[] = {
    {"batch", &BatchPlan::Sizes::batch},
    {"batch entries of q", &BatchPlan::Sizes::query_batch},
    {"rows of q", &BatchPlan::Sizes::query_rows},
    {"rows of keys", &BatchPlan::Sizes::key_rows},
    {"batch entries of keys", &BatchPlan::Sizes::key_batch},
    {"num_heads of q", &BatchPlan::Sizes::num_heads_q},
    {"num_heads of k", &BatchPlan::Sizes::num_heads_kv},
    {"max_seqlen_q", &BatchPlan::Sizes::max_seqlen_q},
    {"query heads of a tile, one with a block mask for many heads or a q_scale for each,",
     &BatchPlan::Sizes::heads_of_tile},
    {"fixed_split_size", &BatchPlan::Sizes::fixed_split_size},
    {"keys that window and chunk show a tile", &BatchPlan::Sizes::seen_keys},
    {"splits of that size, by max_seqlen_kv, window and chunk,", &BatchPlan::Sizes::fixed_splits}};

}  // namespace

BatchPlan::Sizes plan_sizes(const ForwardCall& call, const Variant& variant) {
  const Tensor* const table = call.ragged.page_table;
  const Tiling tiling = tiling_of(call, variant);
  return {.batch = call.batch,
          .query_batch = call.q->shape[batch_dim],
          .query_rows = call.q->shape[seqlen_dim],
          .key_rows = key_rows(*call.k, table),
          .key_batch = table ? table->shape[0] : call.k->shape[batch_dim],
          .num_heads_q = call.num_heads_q,
          .num_heads_kv = call.num_heads_kv,
          .max_seqlen_q = call.seqlen_q,
          .heads_of_tile = tiling.packed_heads,
          .fixed_split_size = call.fixed_split,
          .seen_keys = generator::splits_kv(variant) ? seen_keys(call, tiling) : 0,
          .fixed_splits = call.fixed_split > 0 ? splitting_of(call, variant, 0).count : 0};
}

Dims plan_dims(const ForwardCall& call, const Variant& variant, int sm_count) {
  const Scratch scratch = scratch_of(call, variant, splitting_of(call, variant, sm_count));
  return {static_cast<std::int64_t>(scratch.bytes / sizeof(std::int32_t))};
}

void check_plan(const ForwardCall& call, const BatchPlan& plan) {
  if (plan.memory().shape.size() == 0) reject("plan: must be made by Engine::plan, was empty");
  if (!(call.problem == plan.problem()))
    reject("plan: must be for {}, was for {}", to_string(call.problem), to_string(plan.problem()));
  if (!(*call.variant == plan.variant()))
    reject("variant: must be {} like that of the plan, was {}", to_string(plan.variant()), to_string(*call.variant));
  const BatchPlan::Sizes wanted = plan_sizes(call, *call.variant);
  for (const auto& [name, size] : kSizeRows)
    if (wanted.*size != plan.sizes().*size)
      reject("plan: {} must be {} as in the call, was {}", name, wanted.*size, plan.sizes().*size);
}

void require_plannable(const AttentionOptions& opts) {
  if (opts.plan) reject("plan: must not be given where one is made");
}

void validate_plan_memory(ForwardCall& call, const Tensor& memory, const Variant& variant, int sm_count) {
  if (memory.dtype != DType::i32) reject("memory: dtype must be i32, was {}", to_string(memory.dtype));
  check_shape("memory", memory, kMemoryRules);
  const Dims needed = plan_dims(call, variant, sm_count);
  if (memory.shape[0] < needed[0]) reject("memory: must have at least {} words, had {}", needed[0], memory.shape[0]);
  if (reinterpret_cast<std::uintptr_t>(memory.data) % kMemoryRules.alignment != 0)
    reject("memory: must be aligned to {} bytes, was at {}", kMemoryRules.alignment, memory.data);
  add_operand(call.operands, "memory", memory, Operand::Role::captured_packed, true);
}

}  // namespace flashjit::runtime
