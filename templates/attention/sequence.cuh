// SPDX-License-Identifier: Apache-2.0
// The sequences of a batch: how long the one of a tile is, and where its rows lie. Kernels ask for it tile by tile, and
// nothing else on the device takes lengths from the launch. A part in this slot knows sequences of different lengths.
// Its contract:
//   explicit Part(const Arguments&)    the launch's arguments, of which a part reads the member of its own
//   Place                              what it tells of a tile beside QueryTile, which passes through shared memory
//   uint32 count(sizes)                tiles of all heads
//   Entry entry(sizes, index)          what memory has of the one of this index
//   TileOf<Place> tile<…>(sizes, index[, entry])  that one
//   Sequence sequence(sizes, find)     that of the tile which find() gives; where all are alike nothing is found
//   int first_query(place), first_key(place), query_batch(place, batch), key_batch(place, batch)   where it lies
#pragma once

#include "abi.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

struct Sequence {
  int keys, queries;
};

struct QueryTile {
  int index;  // tile of BLOCK_Q rows
  int head;   // query head
  int batch;  // entry of the batch: a sequence
  // Where keys are split: which part of them, and where what it makes goes: see TileSplit.
  int split = 0, slot = -1;
  int splits = 1, slot_stride = 0;  // how many the tile has, and how far apart their slots are
};
template <class Place>
struct TileOf : Place, QueryTile {};

// At most one part.
template <class... Parts>
struct SequencesBy;

template <class Part>
struct SequencesBy<Part> : Part {
  static constexpr bool kRagged = true;

  using Part::Part;
};
