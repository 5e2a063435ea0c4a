// SPDX-License-Identifier: Apache-2.0
// How keys and values lie in their sequence. They follow one another, or a part in this slot finds them. Its contract:
//   explicit Part(const Arguments&)       the launch's arguments, of which a part reads the member of its own
//   Row                                   whatever it needs to know of a sequence
//   Row row(int key_batch, int keys)      that of one with so many keys
//   KeyPlace place(const Row&, int key)   of one of these, or if it has none, of a row that there is
//   int page(const Row&, int key)         what is asked of memory for that, and the place by what was answered:
//   KeyPlace place(const Row&, int key, int page)
//   int box_rows()                        rows from a multiple of this on, and so many, lie beside each other
//   int batch_rows()                      of an entry of k and v
// Another part, parts/keys/rotary.cuh, says that the last columns of keys stand in a tensor of their own.
#pragma once

#include "types.cuh"

struct KeyPlace {
  int batch, row;  // of k and v
  int end;         // rows of that entry which the sequence has
};

// At most one part that finds them.
template <class... Parts>
struct KeysBy;

template <>
struct KeysBy<> {
  static constexpr bool kPaged = false, kRotaryApart = false;
  struct Row {};

  template <class Arguments>
  __device__ __forceinline__ explicit KeysBy(const Arguments&) {}
};

template <class Part>
struct KeysBy<Part> : Part {
  static constexpr bool kPaged = true, kRotaryApart = false;

  using Part::Part;
};
