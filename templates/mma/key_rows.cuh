// SPDX-License-Identifier: Apache-2.0
// Where the rows of a tile's keys lie, in tensors of [batch, row, head] like k.
#pragma once

#include "abi.cuh"
#include "attention/keys.cuh"
#include "types.cuh"

template <class Config>
struct KeyRows {
  using Keys = typename Config::Keys;

  const typename Config::Arguments* launch;
  int batch, row, head;         // of the first key; in pages the head alone
  typename Keys::Row in_table;  // in pages

  // Of what has one row for all.
  __device__ __forceinline__ const char* first(const char* tensor, const RowStrides& strides) const {
    return tensor + head * strides.head;
  }
  __device__ __forceinline__ const char* of_key(const char* tensor, const RowStrides& strides, int key) const {
    if constexpr (Keys::kPaged) {
      const KeyPlace place = Keys(*launch).place(in_table, key);
      return first(tensor, strides) + place.batch * strides.batch + place.row * strides.row;
    } else {
      return first(tensor, strides) + batch * strides.batch + (row + key) * strides.row;
    }
  }
};
