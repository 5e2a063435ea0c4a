// SPDX-License-Identifier: Apache-2.0
// The slot of masks, and which keys a row sees.
//
// A part in this slot shows each query one span of keys. It asks for the query's position: the key that stands beside
// it when the last query is aligned with the last key. As positions rise, neither end of the span ever falls, so the
// first and the last row of a tile say what all rows between them see. Its contract:
//   static constexpr bool kBegins;   some span begins behind the first key
//   static constexpr bool kEnds;     spans of neighbouring rows end at different keys
//   static constexpr bool kEndsAtPosition;  no span goes behind the position
//   static constexpr bool kInMemory;  spans are known by what a launch before this one may have written
//   Part(const Arguments&, Batch batch)   the launch's arguments, of which a part reads the member of its own; batch()
//                                    gives the batch entry, and is only called by who needs it
//   int first(int position), last(int position)   the span; keys that do not exist may lie in it
#pragma once

#include "attention/packed_heads.cuh"
#include "attention/sequence.cuh"
#include "types.cuh"

// What all of the parts show.
template <class... Parts>
struct AllOf;

template <>
struct AllOf<> {
  static constexpr bool kBegins = false, kEnds = false, kEndsAtPosition = false, kInMemory = false;

  template <class Arguments, class Batch>
  __device__ __forceinline__ AllOf(const Arguments&, Batch) {}

  __device__ __forceinline__ int first(int) const { return 0; }
  __device__ __forceinline__ int last(int, int last_existing_key) const { return last_existing_key; }
};

template <class Part, class... Rest>
struct AllOf<Part, Rest...> {
  static constexpr bool kBegins = Part::kBegins || AllOf<Rest...>::kBegins;
  static constexpr bool kEnds = Part::kEnds || AllOf<Rest...>::kEnds;
  static constexpr bool kEndsAtPosition = Part::kEndsAtPosition || AllOf<Rest...>::kEndsAtPosition;
  static constexpr bool kInMemory = Part::kInMemory || AllOf<Rest...>::kInMemory;

  Part part;
  AllOf<Rest...> rest;

  template <class Arguments, class Batch>
  __device__ __forceinline__ AllOf(const Arguments& args, Batch batch) : part(args, batch), rest(args, batch) {}

  __device__ __forceinline__ int first(int position) const { return max(part.first(position), rest.first(position)); }
  __device__ __forceinline__ int last(int position, int last_existing_key) const {
    return min(part.last(position), rest.last(position, last_existing_key));
  }
};

// What a tile takes of the keys that its rows see: all of them, or those of a split (attention/splits.cuh).
template <bool kSplit>
struct KeySpan {
  __device__ __forceinline__ static KeySpan all() { return {}; }
  __device__ __forceinline__ int first_of(int key) const { return key; }
  __device__ __forceinline__ int last_of(int key) const { return key; }
};

template <>
struct KeySpan<true> {
  int first, end;

  __device__ __forceinline__ static KeySpan all() { return {0, 0x7fffffff}; }
  __device__ __forceinline__ int first_of(int key) const { return max(key, first); }
  __device__ __forceinline__ int last_of(int key) const { return min(key, end - 1); }
};

// The keys of its sequence that a query sees: from the first to the last. None, where the last is before the first.
template <class Config>
struct Mask {
  static constexpr bool kBegins = Config::Masks::kBegins || Config::kSplitKv, kEnds = Config::Masks::kEnds;
  using Span = KeySpan<Config::kSplitKv>;

  const int last_existing_key;
  const int diagonal;  // the position of query 0
  const typename Config::Masks parts;
  const Span span;

  template <class Batch>
  __device__ __forceinline__ Mask(const typename Config::Arguments& args, const Sequence& sequence, Batch batch,
                                  const Span& span_)
      : last_existing_key(sequence.keys - 1),
        diagonal(sequence.keys - sequence.queries),
        parts(args, batch),
        span(span_) {}

  __device__ __forceinline__ int position(int query) const { return query + diagonal; }
  __device__ __forceinline__ int first_key(int query) const { return span.first_of(parts.first(position(query))); }
  __device__ __forceinline__ int last_key(int query) const {
    return span.last_of(parts.last(position(query), last_existing_key));
  }
};

// By rows of tiles that heads share.
template <class Config>
struct PackedMask : Mask<Config> {
  const PackedHeads heads;

  template <class Batch>
  __device__ __forceinline__ PackedMask(const typename Config::Arguments& args, const Sequence& sequence, Batch batch,
                                        const typename Mask<Config>::Span& span)
      : Mask<Config>(args, sequence, batch, span), heads{args.core.packed_heads_log2} {}
  __device__ __forceinline__ int first_key(int row) const { return Mask<Config>::first_key(heads.query(row)); }
  __device__ __forceinline__ int last_key(int row) const { return Mask<Config>::last_key(heads.query(row)); }
};
