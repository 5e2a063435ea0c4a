// SPDX-License-Identifier: Apache-2.0
// Functions of the library that stand for those of users where variants are chosen. Users' texts fall into a few
// classes, by their kind and by whether they read tensors, and one text is timed and checked for all of a class.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "generator/functions.h"

namespace flashjit::generator {

// Where a function is asked: all that its text sees but for captures.
struct FunctionPlace {
  std::int64_t batch, head;
  std::int64_t query, key;
  std::int64_t seqlen_q, seqlen_kv;
};

// A tensor that a stand-in captures: a number for each query head, or for each key.
struct StandInTensor {
  enum class Of : std::uint8_t { heads, keys };

  const char* name;
  DType dtype;
  Of of;
  double (*value)(std::int64_t index, std::int64_t count);
};

struct StandIn {
  FunctionKind kind;
  std::string_view word;  // of the class, in the spelling of a problem: "arithmetic" of score.arithmetic
  const char* text;
  std::span<const StandInTensor> tensors;
  // The text in C++: in f64 and in f32 they agree to the last bit. Null but for those of the kind.
  double (*score)(double score, const FunctionPlace& place) = nullptr;
  float (*score_in_f32)(float score, const FunctionPlace& place) = nullptr;
  double (*slope)(const FunctionPlace& place) = nullptr;  // its derivative by the score, which is the same for all
  bool (*mask)(const FunctionPlace& place) = nullptr;
};

std::span<const StandIn> stand_ins() noexcept;
// The one of the class of a user's function.
const StandIn& stand_in_of(const FunctionText& function) noexcept;
// What it is to kernels.
const FunctionText& function_of(const StandIn& stand_in);
// Whether a user's function is itself the one of its class.
bool is_stand_in(const FunctionText& function);

}  // namespace flashjit::generator
