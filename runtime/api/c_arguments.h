// SPDX-License-Identifier: Apache-2.0
// Arguments through C as C++ has them. All of these throw Error(invalid_argument), and Error(unsupported) for fields of
// a later version.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "flashjit.h"
#include "flashjit/append.h"
#include "flashjit/batch_plan.h"
#include "flashjit/engine.h"
#include "runtime/api/dlpack.h"
#include "runtime/support/reject.h"

struct flashjit_engine {
  flashjit::Engine engine;
};

struct flashjit_plan {
  explicit flashjit_plan(flashjit::BatchPlan made)
      : plan(std::move(made)), problem(to_string(plan.problem())), variant(to_string(plan.variant())) {}

  flashjit::BatchPlan plan;
  std::string problem, variant;
};

namespace flashjit::runtime {

template <typename Value>
Value& require(const char* name, Value* value) {
  if (!value) reject("{}: must not be null", name);
  return *value;
}

inline Engine& engine_of(flashjit_engine* engine) { return engine ? engine->engine : default_engine(); }
inline MemoryKind memory_of(const Engine& engine) { return engine.emulates() ? MemoryKind::host : MemoryKind::device; }

// For errors: what an argument may be.
inline constexpr const char *kRowDTypes = "f16 or bf16", *kKeyDTypes = "f16, bf16, e4m3 or e5m2";

inline Tensor to_rows(const char* name, const DLTensor* tensor, MemoryKind kind) {
  return to_tensor(name, tensor, kind, kRowDTypes);
}
inline Tensor to_keys(const char* name, const DLTensor* tensor, MemoryKind kind) {
  return to_tensor(name, tensor, kind, kKeyDTypes);
}

// What refuses a spelling repeats it; so one that is longer than any is not handed on.
std::string_view require_short(const char* name, std::string_view spelling);
EngineOptions to_engine_options(const flashjit_engine_options* given);
AttentionOptions to_attention_options(const flashjit_attention_options* given, MemoryKind kind);
AppendOptions to_append_options(const flashjit_append_options* given, MemoryKind kind);
QuantizeOptions to_quantize_options(const flashjit_quantize_options* given, MemoryKind kind);  // null: none
DType format_of_bytes(const flashjit_quantize_options* given);                                 // likewise: e4m3
bool is_deterministic(const flashjit_gradients& given);
Problem to_problem(const flashjit_problem* given);
BackwardProblem to_backward_problem(const flashjit_problem* given, const flashjit_gradient_kinds* kinds);
CallShape to_shape(const flashjit_mask_shape& given);

}  // namespace flashjit::runtime
