// SPDX-License-Identifier: Apache-2.0
// Sizes of the Hopper backward kernels of large heads and their map of shared memory:
//   [ rows that stay, and but for dV those of dO or V | P or dS of each stream | of each stream: ring, LSE, row sums,
//   barriers ]
#pragma once

#include "abi.cuh"
#include "attention/large_backward_work.cuh"
#include "pipeline/ring.cuh"
#include "tile/panel_tile.cuh"
#include "types.cuh"

template <class Config>
struct LargeBackwardShape {
  static constexpr bool kOfQueries = Config::kPass == LargePass::queries;
  // Whether there is dP, for dS; to dV P is enough.
  static constexpr bool kDifferentiates = Config::kPass != LargePass::values;

  // Each is a warpgroup, which makes P or dS of every other block and has half of the gradient's columns.
  static constexpr int kStreams = 2;
  static constexpr int kWarpsOfStream = kWarpgroupSize / kWarpSize;
  static constexpr int kConsumerWarps = kStreams * kWarpsOfStream;
  static constexpr int kThreads = (kStreams + 1) * kWarpgroupSize;
  // After setmaxnreg. The gradient alone is 128.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

  static constexpr int kBlockRows = kWarpgroupRows;  // of keys, and of queries
  static_assert(Config::kBlockQ == kBlockRows && Config::kBlockKv == kBlockRows, "blocks of 64 by 64");
  static_assert(Config::kHeadDim == Config::kHeadDimV, "all four tensors have rows alike");

  static constexpr int kColumns = round_up(ceil_div(Config::kHeadDim, kStreams), 16);  // of a stream
  using OwnTile = PanelTile<kBlockRows, Config::kHeadDim>;
  using STile = PanelTile<kBlockRows, kBlockRows>;  // of P or dS: queries by keys

  // What scores are made with comes by panels of the head dim, and what is added up by so many rows of half of it.
  using ScorePiece = PanelTile<kBlockRows, OwnTile::kPanelColumns>;
  using AddedPiece = PanelTile<kLargeBackwardRows, kColumns>;
  static constexpr int kScorePieces = OwnTile::kPanels;
  static constexpr int kAddedPieces = kBlockRows / kLargeBackwardRows;
  static constexpr int kPieceBytes = ScorePiece::kBytes;
  static_assert(AddedPiece::kBytes <= kPieceBytes && AddedPiece::kPanelColumns == ScorePiece::kPanelColumns,
                "pieces have slots alike");
  // Of wgmma's depth.
  static constexpr int kSteps = ceil_div(Config::kHeadDim, 16);
  static constexpr int kStepsOfScorePiece = OwnTile::kPanelColumns / 16;
  static constexpr int kStepsOfAddedPiece = kLargeBackwardRows / 16;

  static constexpr int kOwnTiles = kDifferentiates ? 2 : 1;
  using OwnRing = RingPlace<1, OwnTile::kBytes>;
  using ExchangeRing = RingPlace<1, STile::kBytes>;
  using PieceRing = RingPlace<Config::kPieces, kPieceBytes>;

  // Of the queries of a stream's block: LSE, then row sums.
  static constexpr int kNumbersBytes = 2 * kBlockRows * static_cast<int>(sizeof(float));

  static constexpr int kExchange = kOwnTiles * OwnTile::kBytes;
  static constexpr int kStreamsBegin = kExchange + kStreams * STile::kBytes;
  // What a stream has to itself, so that one register leads to all of it.
  static constexpr int kNumbers = Config::kPieces * kPieceBytes;
  static constexpr int kPieceBarriers = kNumbers + kNumbersBytes;
  static constexpr int kOwnBarrier = kPieceBarriers + PieceRing::kBarrierBytes;
  static constexpr int kExchangeBarriers = kOwnBarrier + OwnRing::kBarrierBytes;
  static constexpr int kSwizzleBytes = 1024;
  static constexpr int kStreamBytes = round_up(kExchangeBarriers + ExchangeRing::kBarrierBytes, kSwizzleBytes);
  static constexpr int kSmemBytes = kStreamsBegin + kStreams * kStreamBytes;

  SmemAddress smem;
  __device__ __forceinline__ SmemAddress of_stream(int stream) const {
    return smem + kStreamsBegin + stream * kStreamBytes;
  }
  // Keys or queries, and beside them values or rows of dO: each is brought by a stream's loader.
  __device__ __forceinline__ OwnRing own(int i) const {
    return {of_stream(i) + kOwnBarrier, smem + i * OwnTile::kBytes};
  }
  // What a stream sends to both.
  __device__ __forceinline__ ExchangeRing exchange(int stream) const {
    return {of_stream(stream) + kExchangeBarriers, smem + kExchange + stream * STile::kBytes};
  }
  __device__ __forceinline__ PieceRing pieces(int stream) const {
    return {of_stream(stream) + kPieceBarriers, of_stream(stream)};
  }

  __device__ __forceinline__ void init_barriers() const {
#pragma unroll
    for (int i = 0; i < kOwnTiles; ++i) own(i).init(kConsumerWarps);
#pragma unroll
    for (int stream = 0; stream < kStreams; ++stream) {
      exchange(stream).init(kWarpsOfStream, kWarpsOfStream);
      pieces(stream).init(kWarpsOfStream);
    }
    ptx::fence_mbarrier_init();
  }
};
