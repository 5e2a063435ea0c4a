// SPDX-License-Identifier: Apache-2.0
#include "distributed/checks.h"

#include <cstdint>
#include <utility>

#include "distributed/plan.h"
#include "distributed/reject.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {
namespace {

constexpr std::int64_t kAlignment = 16;  // of rows, in bytes

void check_is_given(const char* name, const Tensor& tensor) {
  if (!tensor.data && !is_empty(tensor)) reject("{}: must point to its elements, was null", name);
}

void check_sinks(const Tensor& sinks, const Sizes& sizes) {
  const bool of_batch = sinks.shape.size() == 2 && sinks.shape[0] == sizes.batch;
  if (sinks.dtype != DType::f32 || !(sinks.shape.size() == 1 || of_batch) ||
      sinks.shape[sinks.shape.size() - 1] != sizes.num_heads_q || sinks.strides[sinks.shape.size() - 1] != 1)
    reject("sinks: must be f32 [{}] or [{}, {}], contiguous, was {} {}", sizes.num_heads_q, sizes.batch,
           sizes.num_heads_q, to_string(sinks.dtype), to_string(sinks.shape));
  check_is_given("sinks", sinks);
}

// Of this rank's queries, rows of them, and of all keys.
void check_bias(const Tensor& bias, const Sizes& sizes, std::int64_t queries, std::int64_t keys) {
  const auto is_or_one = [&](int dim, std::int64_t size) { return bias.shape[dim] == size || bias.shape[dim] == 1; };
  if (bias.shape.size() != 4 || !is_or_one(0, sizes.batch) || !is_or_one(1, sizes.num_heads_q) ||
      bias.shape[2] != queries || bias.shape[3] != keys)
    reject("bias: shape must be [{} or 1, {} or 1, {}, {}], of this rank's queries and of all keys, was {}",
           sizes.batch, sizes.num_heads_q, queries, keys, to_string(bias.shape));
  check_is_given("bias", bias);
}

Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}})
    if (tensor->shape.size() != head_dim_dim + 1)
      reject("{}: must have 4 dimensions over several GPUs, had {}", name, tensor->shape.size());
  return {q.shape[batch_dim],    q.shape[heads_dim],    k.shape[heads_dim],
          q.shape[head_dim_dim], v.shape[head_dim_dim], q.dtype};
}

}  // namespace

void check_group(const Engine& engine, const Group& group, const char* name, const Sharding& sharding) {
  if (sharding.ranks() != group.size())
    reject("{}: must be of {} ranks like the group, was of {}", name, group.size(), sharding.ranks());
  check_memory(engine, group);
}

void check_memory(const Engine& engine, const Group& group) {
  if (engine.emulates() != (group.transport().device() == kHostMemory))
    reject("group: must be over {}, where the engine computes, was not", engine.emulates() ? "host memory" : "GPUs");
}

void check_rows(const char* name, const Tensor& tensor, const Dims& shape, DType dtype) {
  if (tensor.shape.size() != shape.size() || tensor.shape != shape)
    reject("{}: shape must be {}, was {}", name, to_string(shape), to_string(tensor.shape));
  if (tensor.dtype != dtype) reject("{}: dtype must be {}, was {}", name, to_string(dtype), to_string(tensor.dtype));
  if (is_empty(tensor)) return;
  check_is_given(name, tensor);
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
  check_is_given("lse", lse);
}

GivenCall::GivenCall(const Engine& engine, const Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Options& options)
    : sizes(sizes_of(q, k, v)) {
  const Sharding& of_keys = options.keys ? *options.keys : options.queries;
  check_group(engine, group, "queries", options.queries);
  check(sizes, options);
  queries = options.queries.length(group.rank());
  keys = of_keys.length(group.rank());
  check_rows("q", q, {sizes.batch, queries, sizes.num_heads_q, sizes.head_dim}, sizes.dtype);
  check_rows("k", k, {sizes.batch, keys, sizes.num_heads_kv, sizes.head_dim}, sizes.dtype);
  check_rows("v", v, {sizes.batch, keys, sizes.num_heads_kv, sizes.head_dim_v}, sizes.dtype);
  if (options.attention.lse) check_lse(*options.attention.lse, lse_shape());
  if (options.attention.sinks) check_sinks(*options.attention.sinks, sizes);
  if (options.attention.bias) check_bias(*options.attention.bias, sizes, queries, of_keys.seqlen());
}

}  // namespace flashjit::distributed
