// SPDX-License-Identifier: Apache-2.0
// Keys and values in pages: entries of k and v that stand in any order, and which a row of a table names for each
// sequence. Of the table nothing is read but what the sequence's keys need.
#pragma once

#include "abi.cuh"
#include "attention/keys.cuh"
#include "ptx/memory.cuh"

struct PagedKeys {
  struct Row {
    const int* pages;
    int keys;
  };

  const PagedArguments& args;

  template <class Arguments>
  __device__ __forceinline__ explicit PagedKeys(const Arguments& launch) : args(launch.paged) {}

  __device__ __forceinline__ Row row(int key_batch, int keys) const {
    return {args.table + key_batch * args.row_stride, keys};
  }
  // Keys behind the last one are where that is, and the key of a sequence without any is the first of all pages.
  __device__ __forceinline__ KeyPlace place(const Row& row, int key) const { return place(row, key, page(row, key)); }
  // What the table answers, late, and the place by that.
  __device__ __forceinline__ int page(const Row& row, int key) const {
    if (row.keys == 0) return 0;
    return min(max(ptx::ld_global_int(row.pages + entry(min(key, row.keys - 1))), 0), args.pages - 1);
  }
  __device__ __forceinline__ KeyPlace place(const Row& row, int key, int page) const {
    if (row.keys == 0) return {0, 0, 1};
    key = min(key, row.keys - 1);
    const int first = entry(key) * args.page_size;
    return {page, key - first, min(row.keys - first, args.page_size)};
  }
  __device__ __forceinline__ int box_rows() const { return args.box_rows; }
  __device__ __forceinline__ int batch_rows() const { return args.page_size; }

 private:
  __device__ __forceinline__ int entry(int key) const {
    return static_cast<int>(static_cast<uint64>(key) * args.magic >> args.shift);
  }
};
