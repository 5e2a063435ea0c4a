// SPDX-License-Identifier: Apache-2.0
// Functions that are written as text, by users or for the library's own features. The generator makes of each a struct
// in the namespace `text`: its captures are the members, and the text is the body of operator(). It is launched as an
// argument.
#pragma once

#include "abi.cuh"
#include "attention/row_place.cuh"
#include "function/math.cuh"
#include "function/position.cuh"
#include "function/tensor.cuh"

template <class Function>
struct TextArguments {
  OffsetArguments offsets;
  Function function;
};

// What a text is told of a row of scores.
template <class Function>
struct TextRow {
  const Function* function;
  int batch, head;
  Sequence sequence;
  int query;          // that it calls so
  int from_position;  // what is added to a position for it
  int first_key;      // that it calls so

  __device__ __forceinline__ TextRow at(int position) const {
    return {function, batch, head, sequence, position + from_position, from_position, first_key};
  }
  __device__ __forceinline__ TextRow beside(const TextRow& other) const {
    return {function, other.batch, head, sequence, query, from_position, other.first_key};
  }
  __device__ __forceinline__ text::RowPosition query_position() const { return {{query, 0}}; }
  __device__ __forceinline__ text::Position key_position(int first, int offset) const {
    return {first_key + first, offset};
  }
  template <class Number>
  __device__ __forceinline__ Number score(Number score, int first, int offset) const {
    return (*function)(score, batch, head, query_position(), key_position(first, offset), sequence.queries,
                       sequence.keys);
  }
  __device__ __forceinline__ bool sees(int first, int offset) const {
    return (*function)(batch, head, query_position(), key_position(first, offset), sequence.queries, sequence.keys);
  }
};

template <class Function>
__device__ __forceinline__ TextRow<Function> text_row(const TextArguments<Function>& args, const RowPlace& place) {
  const int* const of_queries = args.offsets.of_queries;
  const int* const of_keys = args.offsets.of_keys;
  const int diagonal = place.sequence.keys - place.sequence.queries;
  const int from_position = (of_queries == nullptr ? 0 : of_queries[place.batch]) - diagonal;
  return {&args.function,
          place.batch,
          place.head,
          place.sequence,
          place.position + from_position,
          from_position,
          of_keys == nullptr ? 0 : of_keys[place.batch]};
}
