// SPDX-License-Identifier: Apache-2.0
// Gradients of attention for Hopper where head dims are above 256: three kernels, each for one of them, whose sums no
// register file would hold beside another's. A block has 64 rows of it, and two warpgroups, its streams. A stream makes
// scores of every other block of what the rows meet, and has half of the gradient's columns:
//   dV = sum P^T dO      dK = sum dS^T Q      of 64 keys, through blocks of queries
//   dQ = sum dS K                             of 64 queries, through blocks of keys
// P or dS of every block goes to both streams through shared memory. docs/kernels/large_heads.md explains who waits for
// whom.
#pragma once

#include "attention/large_backward_work.cuh"
#include "attention/softmax.cuh"
#include "hopper/backward_scores.cuh"
#include "hopper/backward_store.cuh"
#include "hopper/large_backward_loader.cuh"
#include "hopper/large_backward_shape.cuh"
#include "pipeline/ring.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/memory.cuh"
#include "ptx/special_registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

template <class Config>
class LargeBackwardConsumer {
  using Shape = LargeBackwardShape<Config>;
  using Work = LargeBackwardWork<Config>;
  using Step = typename Work::Step;
  using OwnTile = typename Shape::OwnTile;
  using ScorePiece = typename Shape::ScorePiece;
  using AddedPiece = typename Shape::AddedPiece;
  using STile = typename Shape::STile;
  using ScoreMath = HopperBackwardScores<Config>;
  // Generated, without members: their registers are known to PTX alone.
  using Matrix = typename Config::Scores;  // S^T and dP^T, and P^T and dS^T of them
  using Gradient = typename Config::Gradient;

 public:
  __device__ __forceinline__ LargeBackwardConsumer(const Work& work_, const Shape& shape_)
      : work(work_), args(work_.launch.core), shape(shape_), scores(args.sizes), pieces(shape_.pieces(stream())) {}

  __device__ __forceinline__ void run() {
    Matrix::declare();
    Gradient::declare();
    Gradient::clear();
    if (work.steps > 0) visit_blocks();
    // Found anew, as registers are few in between.
    const Work found(work.launch, static_cast<uint32>(ptx::made_here(uint64{ptx::ctaid_x()})));
    const GradientRows rows =
        Shape::kOfQueries ? GradientRows::of_queries(found.tile, found.head) : GradientRows::of_keys(found.tile);
    HopperBackwardStore<Config>{rows, found.first_row()}.template write<Gradient, Shape::kColumns, Config::kHeadDim>(
        args.gradient, args.gradient_strides, stream() * Shape::kColumns, args.scale);
  }

 private:
  // --- The blocks of a tile ----------------------------------------------------------------------------------------

  // Nothing is in flight where the loop begins anew: ptxas, which has to know where products land, would wait for each
  // of its own.
  __device__ __forceinline__ void visit_blocks() {
#pragma unroll
    for (int i = 0; i < Shape::kOwnTiles; ++i) ptx::mbarrier_wait(shape.own(i).full(0), 0);
    int visited = stream();
#pragma unroll 1
    for (; visited < work.steps; visited += Shape::kStreams) {
      const bool follows = visited > 0;
      const Step block = work.step(visited);
      request_number(block);
      issue_scores<0>();
      await_numbers();
      if (follows) add(visited - 1);
      send(block, parity_of(visited));
      finish(follows);
      if (follows) release(visited - 1);
      add(visited);
      finish(true);
    }
    if (visited == work.steps) {  // the last block was the other stream's
      add(visited - 1);
      finish(true);
    }
  }

  // From S, and dP, to P, or to dS, and to both streams, beside what is added up for the other stream's block.
  __device__ __forceinline__ void send(const Step& block, uint32 parity) {
    const bool hides = scores.exponentiate(work.mask, work.first_key(block), work.first_query(block), lse());
    if constexpr (Shape::kDifferentiates)
      scores.differentiate(hides, lse() + Shape::kNumbersBytes / 2);
    else
      Matrix::keep_probabilities();
    const auto exchange = shape.exchange(stream());
    // By the other stream; the warps of this one have met for LSE and row sums since they have read it.
    ptx::mbarrier_wait(exchange.empty(0), parity ^ 1);
    const SmemAddress to = ScoreMath::template place_in<STile>(exchange.slot(0), 0);
    if constexpr (Shape::kDifferentiates)
      Matrix::store_derivatives(to);
    else
      Matrix::store_probabilities(to);
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();
    if (ptx::elect()) ptx::mbarrier_arrive(exchange.full(0));
  }

  // The place of a block's P or dS is that of the stream which makes it.
  __device__ __forceinline__ static int stream_of(int visited) { return visited % Shape::kStreams; }
  __device__ __forceinline__ static uint32 parity_of(int visited) { return visited / Shape::kStreams % 2; }
  // What was added up for a block of the other stream's is complete.
  __device__ __forceinline__ void release(int visited) const {
    if (ptx::elect()) ptx::mbarrier_arrive(shape.exchange(stream_of(visited)).empty(0));
  }

  // --- LSE and row sum of a block's queries ------------------------------------------------------------------------

  // Asked for before the block's scores are made, one by each thread: the LSE of a query by the first 64, by the others
  // its row sum. They come where those of the stream's block before were, whose P or dS all of its warps have sent:
  // this one has seen it.
  __device__ __forceinline__ void request_number(const Step& step) const {
    const int query = work.first_query(step) + thread() % Shape::kBlockRows;
    const bool is_sum = thread() >= Shape::kBlockRows;
    const SmemAddress to = lse() + thread() * static_cast<int>(sizeof(float));
    if (query < work.tile.sequence.queries) {
      const int64 of_head = static_cast<int64>(work.tile.query_batch) * args.sizes.num_heads_q + step.head;
      ptx::cp_async_4(
          to, (is_sum ? args.row_sums : args.lse_log2) + of_head * args.rows_of_head + work.tile.first_query + query);
    } else {
      ptx::st_shared(to, static_cast<uint32>(__float_as_int(is_sum ? 0.0f : infinity())));
    }
  }
  __device__ __forceinline__ void await_numbers() const {
    ptx::cp_async_wait_all();
    ptx::bar_sync<kWarpgroupSize>(
        static_cast<NamedBarrier>(static_cast<uint32>(NamedBarrier::first_stream) + stream()));
  }

  // --- Products. Between issue and wait nothing may touch their registers. -----------------------------------------

  // S and behind it dP of a block, piece by piece, each given back when the next one is issued.
  template <int kPiece>
  __device__ __forceinline__ void issue_scores() {
    constexpr int kPieces = Shape::kOwnTiles * Shape::kScorePieces;
    issue_score_piece<kPiece / Shape::kScorePieces, kPiece % Shape::kScorePieces>();
    ptx::wgmma_wait_group<1>();
    if constexpr (kPiece > 0) give_back(kOneBefore);
    if constexpr (kPiece + 1 < kPieces)
      issue_scores<kPiece + 1>();
    else
      finish(true);
  }
  template <int kOwn, int kPiece>
  __device__ __forceinline__ void issue_score_piece() {
    constexpr int kFirst = kPiece * Shape::kStepsOfScorePiece, kLeft = Shape::kSteps - kFirst;
    constexpr int kSteps = kLeft < Shape::kStepsOfScorePiece ? kLeft : Shape::kStepsOfScorePiece;
    constexpr uint64 kTile = kOwn * (OwnTile::kBytes >> OwnTile::kUnitBits);
    const int stage = pieces.take();
    ptx::wgmma_fence();
    const uint64 rows = ptx::made_here(OwnTile::k_major(shape.smem) + kTile + OwnTile::k_major_step(kFirst));
    const uint64 piece = ptx::made_here(ScorePiece::k_major(pieces.place.slot(stage)));
    uint64 keys[kSteps], queries[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64 own = rows + OwnTile::k_major_step(step), met = piece + ScorePiece::k_major_step(step);
      keys[step] = Shape::kOfQueries ? met : own;
      queries[step] = Shape::kOfQueries ? own : met;
    }
    if constexpr (kOwn == 0)
      Matrix::template issue_scores<(kPiece > 0), kSteps>(keys, queries);
    else
      Matrix::template issue_gradients<(kPiece > 0), kSteps>(keys, queries);
    ptx::wgmma_commit_group();
  }

  // P^T dO, dS^T Q or dS K of a block, whichever stream's, as soon as that has sent P or dS. Nothing is in flight
  // before, and the last piece is behind.
  __device__ __forceinline__ void add(int visited) {
    constexpr bool kTransposed = !Shape::kOfQueries;
    const auto from = shape.exchange(stream_of(visited));
    ptx::mbarrier_wait(from.full(0), parity_of(visited));
    const uint64 first = ptx::made_here(kTransposed ? STile::n_major(from.slot(0)) : STile::k_major(from.slot(0)));
#pragma unroll
    for (int piece = 0; piece < Shape::kAddedPieces; ++piece) {
      const uint64 rows = ptx::made_here(AddedPiece::n_major(pieces.place.slot(pieces.take())));
      uint64 a[Shape::kStepsOfAddedPiece], b[Shape::kStepsOfAddedPiece];
#pragma unroll
      for (int i = 0; i < Shape::kStepsOfAddedPiece; ++i) {
        const int step = piece * Shape::kStepsOfAddedPiece + i;
        a[i] = first + (kTransposed ? STile::n_major_step(step) : STile::k_major_step(step));
        b[i] = rows + AddedPiece::n_major_step(i);
      }
      ptx::wgmma_fence();
      Gradient::issue(a, b, 1);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>();
      if (piece > 0) give_back(kOneBefore);
    }
  }
  // issued: whether a piece is in flight. The wait has to stand outside of a branch, or ptxas does not know what it is
  // for.
  __device__ __forceinline__ void finish(bool issued) {
    ptx::wgmma_wait_group<0>();
    if (issued) give_back(kLast);
  }
  // A piece whose product is complete, by its place before the next one.
  static constexpr int kLast = 1, kOneBefore = 2;
  __device__ __forceinline__ void give_back(int before) const {
    const int stage = pieces.stage() - before;
    pieces.give_back(stage < 0 ? stage + Config::kPieces : stage, ptx::elect());
  }

  // Of the stream's block; row sums lie behind it.
  __device__ __forceinline__ SmemAddress lse() const { return pieces.place.slots + Shape::kNumbers; }
  // Asked for each time, as the loop has no register to keep it in.
  __device__ __forceinline__ static int stream() { return ptx::shfl_first(ptx::tid_x() / kWarpgroupSize) - 1; }
  __device__ __forceinline__ static int thread() { return ptx::tid_x() % kWarpgroupSize; }

  const Work& work;
  const HopperLargeBackwardArguments& args;
  const Shape shape;
  const ScoreMath scores;
  RingReader<typename Shape::PieceRing, 1> pieces;
};

template <class Config>
__device__ __forceinline__ void open_large_backward(const HopperLargeBackwardArguments& args,
                                                    const LargeBackwardShape<Config>& shape) {
  if (ptx::tid_x() == 0) {
    ptx::prefetch_tensormap(args.k);
    ptx::prefetch_tensormap(args.q);
    ptx::prefetch_tensormap(args.added);
    if constexpr (LargeBackwardShape<Config>::kDifferentiates) {
      ptx::prefetch_tensormap(args.v);
      ptx::prefetch_tensormap(args.dout);
    }
    shape.init_barriers();
  }
  ptx::bar_sync();
}

template <class Config>
__device__ __forceinline__ void backward_hopper_large(const typename Config::Arguments& args, SmemAddress smem) {
  using Shape = LargeBackwardShape<Config>;
  using Work = LargeBackwardWork<Config>;
  const uint32 index = ptx::ctaid_x();
  if (!Work::exists(args, index)) return;
  const Shape shape{smem};
  open_large_backward<Config>(args.core, shape);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
    const int warp = ptx::shfl_first(ptx::tid_x() / kWarpSize);
    if (warp >= Shape::kStreams) return;
    const Work work(args, index);
    if (ptx::tid_x() % kWarpSize == 0) LargeBackwardLoader<Config>(work, shape, warp).run();
  } else {
    ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
    const Work work(args, index);
    LargeBackwardConsumer<Config>(work, shape).run();
  }
}
