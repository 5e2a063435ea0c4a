// SPDX-License-Identifier: Apache-2.0
// Who feeds a stream of the backward kernels of large heads: what scores of its own blocks are made with, and of what
// is added up its own columns of all blocks, piece by piece in the order of their use.
#pragma once

#include "attention/large_backward_work.cuh"
#include "hopper/backward_origins.cuh"
#include "hopper/large_backward_shape.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"

template <class Config>
class LargeBackwardLoader {
  using Shape = LargeBackwardShape<Config>;
  using Work = LargeBackwardWork<Config>;
  using Step = typename Work::Step;
  using AddedPiece = typename Shape::AddedPiece;
  static constexpr bool kOfQueries = Shape::kOfQueries;

 public:
  __device__ __forceinline__ LargeBackwardLoader(const Work& work_, const Shape& shape_, int stream_)
      : work(work_), args(work_.launch.core), shape(shape_), stream(stream_), pieces(shape_.pieces(stream_)) {}

  // The stream begins with scores of two blocks ahead of what is added up for them.
  __device__ __forceinline__ void run() {
    if (work.steps == 0) return;
    request_own();
#pragma unroll 1
    for (int visited = 0; visited < work.steps; ++visited) {
      if (visited >= Shape::kStreams) request_added(work.step(visited - Shape::kStreams));
      if (visited % Shape::kStreams == stream) request_scores(work.step(visited));
    }
#pragma unroll 1
    for (int added = max(work.steps - Shape::kStreams, 0); added < work.steps; ++added) request_added(work.step(added));
  }

 private:
  // Rows that stay: one tile each.
  __device__ __forceinline__ void request_own() const {
    if (stream >= Shape::kOwnTiles) return;
    const auto own = shape.own(stream);
    const TensorMap& map = kOfQueries ? stream == 0 ? args.q : args.dout : stream == 0 ? args.k : args.v;
    auto at = own_origin();
    ptx::mbarrier_arrive_expect_tx(own.full(0), Shape::OwnTile::kBytes);
#pragma unroll 1
    for (int panel = 0; panel < Shape::OwnTile::kPanels; ++panel) {
      at.column = panel * Shape::OwnTile::kPanelColumns;
      ptx::tma_load(own.slot(0) + panel * Shape::OwnTile::kPanelBytes, map, at, own.full(0),
                    ptx::L2Policy::evict_first);
    }
  }

  __device__ __forceinline__ void request_scores(const Step& step) {
    request_panels(kOfQueries ? args.k : args.q, step);
    if constexpr (Shape::kDifferentiates) request_panels(kOfQueries ? args.v : args.dout, step);
  }
  __device__ __forceinline__ void request_panels(const TensorMap& map, const Step& step) {
    auto at = origin(step, step.block * Shape::kBlockRows);
#pragma unroll 1
    for (int piece = 0; piece < Shape::kScorePieces; ++piece) {
      at.column = piece * Shape::OwnTile::kPanelColumns;
      pieces.wait_empty();
      ptx::mbarrier_arrive_expect_tx(pieces.full(), Shape::ScorePiece::kBytes);
      ptx::tma_load(pieces.slot(), map, at, pieces.full(), ptx::L2Policy::evict_last);
      pieces.advance();
    }
  }
  __device__ __forceinline__ void request_added(const Step& step) {
#pragma unroll 1
    for (int piece = 0; piece < Shape::kAddedPieces; ++piece) {
      auto at = origin(step, row_of_piece(step.block * Shape::kBlockRows + piece * kLargeBackwardRows));
      pieces.wait_empty();
      ptx::mbarrier_arrive_expect_tx(pieces.full(), AddedPiece::kBytes);
#pragma unroll 1
      for (int panel = 0; panel < AddedPiece::kPanels; ++panel) {
        at.column = column_of(stream * Shape::kColumns + panel * AddedPiece::kPanelColumns);
        ptx::tma_load(pieces.slot() + panel * AddedPiece::kPanelBytes, args.added, at, pieces.full(),
                      ptx::L2Policy::evict_last);
      }
      pieces.advance();
    }
  }

  __device__ __forceinline__ auto own_origin() const {
    if constexpr (kOfQueries)
      return query_origin<Config>(work.launch, work.tile, work.head, work.first_row());
    else
      return key_origin<Config>(work.launch, work.tile, work.first_row());
  }
  __device__ __forceinline__ auto origin(const Step& step, int row) const {
    if constexpr (kOfQueries)
      return key_origin<Config>(work.launch, work.tile, row);
    else
      return query_origin<Config>(work.launch, work.tile, step.head, row);
  }
  // Of a ragged batch no box may lie behind its sequence as a whole (HopperTiles::key_origin): it begins then with the
  // last row, as P and dS are 0 there.
  __device__ __forceinline__ int row_of_piece(int row) const {
    if constexpr (Config::Sequences::kRagged)
      return min(row, (kOfQueries ? work.tile.sequence.keys : work.tile.sequence.queries) - 1);
    return row;
  }
  // No box lies behind the last column as a whole, either: what such a panel makes of the gradient is not stored.
  __device__ __forceinline__ static int column_of(int column) { return min(column, Config::kHeadDim - kChunkElements); }

  const Work& work;
  const HopperLargeBackwardArguments& args;
  const Shape shape;
  const int stream;
  RingWriter<typename Shape::PieceRing> pieces;
};
