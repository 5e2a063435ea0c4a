// SPDX-License-Identifier: Apache-2.0
// What C programs hand over (flashjit.h), as C++ has it: for libraries that have a C interface of their own beside that
// one, as libflashjit_distributed has. All throw Error(invalid_argument) which names the argument, and
// Error(unsupported) for fields that only a newer header has.
#pragma once

#include <cstddef>
#include <functional>

#include "flashjit.h"
#include "flashjit/engine.h"

namespace flashjit::from_c {

// Null is the default engine.
Engine& engine_of(flashjit_engine* engine);

// The view that a tensor describes, of memory that the engine computes in: views borrow, and live no longer than that.
// dtypes: which it may have, for the message, "f16 or bf16"; which it has, and its shape, are the caller's to judge.
Tensor tensor_of(const char* name, const DLTensor* tensor, const Engine& engine, const char* dtypes);

// Null: none. What options point to is borrowed, too, but for texts, which are copied.
AttentionOptions attention_options_of(const flashjit_attention_options* options, const Engine& engine);

struct GivenGradients {
  GradientTensors into;
  bool deterministic = false;
};
GivenGradients gradients_of(const flashjit_gradients* gradients, const Engine& engine);  // not null

// A struct that begins with struct_size, its size in the caller's header.
struct StructFacts {
  const char* name;
  std::size_t first_size;  // in the first version of its header
};
// What the caller's version has of it, into a struct of this version whose other fields are left as they are.
void read_struct(const StructFacts& facts, const void* given, void* known, std::size_t known_size);

// Does the work and returns its status. No exception leaves it: an Error becomes its status, anything else
// FLASHJIT_FAILURE, and flashjit_last_error() of this thread says why.
flashjit_status guarded(const std::function<void()>& work) noexcept;

}  // namespace flashjit::from_c
