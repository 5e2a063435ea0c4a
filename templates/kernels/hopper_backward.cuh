// SPDX-License-Identifier: Apache-2.0
// Gradients of attention for Hopper: a producer warp feeds the copy engine, two warpgroups of 64 keys each multiply, and
// a warp for each of them sends dQ on its way. docs/kernels/backward.md explains who waits for whom.
//
// A block has BLOCK_KV keys of one key/value head, with dK and dV in registers, and goes through the tiles of BLOCK_Q
// queries that see any of them, of all query heads of the group. For each tile:
//   S^T = K Q^T,  P^T = exp(S^T - LSE)      dP^T = V dO^T,  dS^T = P^T (dP^T - D)       rows: keys
//   dV += P^T dO                            dK += dS^T Q                                P^T and dS^T from registers
//   dQ += dS K                              rows: queries; dS through shared memory
#pragma once

#include "attention/gradient.cuh"
#include "attention/key_tile.cuh"
#include "attention/mask.cuh"
#include "attention/softmax.cuh"
#include "hopper/backward_shape.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

// What all warps of a block know of it.
template <class Config>
struct HopperBackwardBlock {
  const typename Config::Arguments& launch;
  const HopperBackwardArguments& args;
  const KeyTile keys;
  const int first_key;
  const Mask<Config> mask;
  const QueryTiles queries;
  const int steps;

  __device__ __forceinline__ explicit HopperBackwardBlock(const typename Config::Arguments& arguments)
      : launch(arguments),
        args(arguments.core),
        keys(KeyTile::of_block<Config>(args.sizes)),
        first_key(keys.index * Config::kBlockKv),
        mask(arguments, Sequence{args.sizes.seqlen_kv, args.sizes.seqlen_q}, [this] { return keys.batch; }, {}),
        queries(QueryTiles::beside<Config>(first_key, args.sizes, mask)),
        steps(max(queries.count(), 0) * args.sizes.heads_per_group) {}

  // Of the block's heads and tiles, one after the other.
  struct Step {
    int head, tile;
  };
  __device__ __forceinline__ Step first_step() const {
    return {keys.head * args.sizes.heads_per_group, queries.first};
  }
  __device__ __forceinline__ void advance(Step& step) const {
    if (++step.tile == queries.end) ++step.head, step.tile = queries.first;
  }
  // Among all tiles of queries.
  __device__ __forceinline__ int64 index_of(const Step& step) const {
    return (static_cast<int64>(keys.batch) * args.sizes.num_heads_q + step.head) * args.sizes.num_q_tiles + step.tile;
  }
};

// One thread: all that comes.
template <class Config>
struct HopperBackwardLoader {
  using Shape = HopperBackwardShape<Config>;
  using Block = HopperBackwardBlock<Config>;
  using Step = typename Block::Step;

  const Block& block;
  const HopperBackwardArguments& args = block.args;
  const Shape shape;
  RingWriter<typename Shape::QRing> queries{shape.queries()};
  RingWriter<typename Shape::ORing> gradients{shape.gradients()};

  __device__ __forceinline__ void run() {
    Step step = block.first_step();
    bring_once<typename Shape::KTile>(args.k, shape.keys(), shape.key_barrier());
    bring_queries(step);
    bring_once<typename Shape::VTile>(args.v, shape.values(), shape.value_barrier());
    bring_gradients(step);
#pragma unroll 1
    for (int i = 1; i < block.steps; ++i) {
      block.advance(step);
      bring_queries(step);
      bring_gradients(step);
    }
  }

 private:
  __device__ __forceinline__ void bring_queries(const Step& step) {
    bring<typename Shape::QTile>(queries, args.q, args.lse_log2, shape.lse(queries.cursor.stage()), step);
  }
  __device__ __forceinline__ void bring_gradients(const Step& step) {
    bring<typename Shape::OTile>(gradients, args.dout, args.row_sums, shape.row_sums(gradients.cursor.stage()), step);
  }
  // Rows of queries, and a number for each.
  template <class Rows, class Ring>
  __device__ __forceinline__ void bring(Ring& ring, const TensorMap& map, const float* numbers, SmemAddress to,
                                        const Step& step) {
    ring.wait_empty();
    ptx::mbarrier_arrive_expect_tx(ring.full(), Rows::kBytes + Shape::kNumbersBytes);
    bring_rows<Rows>(map, ring.slot(), {0, step.head, step.tile * Config::kBlockQ, block.keys.batch}, ring.full(),
                     ptx::L2Policy::evict_last);
    ptx::bulk_load(to, numbers + block.index_of(step) * Config::kBlockQ, Shape::kNumbersBytes, ring.full());
    ring.advance();
  }
  template <class Rows>
  __device__ __forceinline__ void bring_once(const TensorMap& map, SmemAddress to, SmemAddress barrier) {
    ptx::mbarrier_arrive_expect_tx(barrier, Rows::kBytes);
    bring_rows<Rows>(map, to, {0, block.keys.head, block.first_key, block.keys.batch}, barrier,
                     ptx::L2Policy::evict_first);
  }
  template <class Rows>
  __device__ __forceinline__ static void bring_rows(const TensorMap& map, SmemAddress to, ptx::BoxOrigin at,
                                                    SmemAddress barrier, ptx::L2Policy policy) {
#pragma unroll
    for (int panel = 0; panel < Rows::kPanels; ++panel, at.column += Rows::kPanelColumns)
      ptx::tma_load(to + panel * Rows::kPanelBytes, map, at, barrier, policy);
  }
};

// One thread for each part of dQ: adds it to global memory.
template <class Config>
struct HopperBackwardWriter {
  using Shape = HopperBackwardShape<Config>;
  using Block = HopperBackwardBlock<Config>;

  const Block& block;
  const Shape shape;
  const int part;

  __device__ __forceinline__ void run() const {
    typename Block::Step step = block.first_step();
#pragma unroll 1
    for (int i = 0; i < block.steps; ++i, block.advance(step)) {
      ptx::mbarrier_wait(shape.part_full(part), i % 2);
      if (block.args.dq != nullptr) {
        constexpr int kFloats = Shape::kPartBytes / static_cast<int>(sizeof(float));
        ptx::bulk_add(block.args.dq + (block.index_of(step) * Shape::kWarpgroups + part) * kFloats, shape.part(part),
                      Shape::kPartBytes);
        ptx::tma_commit_group();
        ptx::tma_wait_read();
      }
      ptx::mbarrier_arrive(shape.part_empty(part));
    }
    ptx::tma_wait();
  }
};

// A warpgroup.
template <class Config>
class HopperBackwardConsumer {
  using Shape = HopperBackwardShape<Config>;
  using Block = HopperBackwardBlock<Config>;
  using KTile = typename Shape::KTile;
  using VTile = typename Shape::VTile;
  using QTile = typename Shape::QTile;
  using OTile = typename Shape::OTile;
  using STile = typename Shape::STile;
  using Element = typename Config::Element;
  // Generated, without members: their registers are known to PTX alone.
  using Scores = typename Config::Scores;  // S^T, dP^T, and P^T and dS^T of them
  using KeyGradient = typename Config::KeyGradient;
  using ValueGradient = typename Config::ValueGradient;
  using QueryGradient = typename Config::QueryGradient;
  static constexpr int kDimSteps = ceil_div(Config::kHeadDim, 16), kValueDimSteps = ceil_div(Config::kHeadDimV, 16);
  static constexpr int kQuerySteps = Config::kBlockQ / 16, kKeySteps = Config::kBlockKv / 16;

 public:
  __device__ __forceinline__ HopperBackwardConsumer(const Block& block_, const Shape& shape_, int warpgroup_)
      : block(block_),
        args(block_.args),
        shape(shape_),
        warpgroup(warpgroup_),
        queries(shape_.queries()),
        gradients(shape_.gradients()),
        unit(args.sizes.query_sign != 0 ? -args.sizes.scale_log2 : args.sizes.scale_log2) {}

  __device__ __forceinline__ void run() {
    Scores::declare();
    KeyGradient::declare();
    ValueGradient::declare();
    QueryGradient::declare();
    if (block.steps > 0) {
      ptx::mbarrier_wait(shape.key_barrier(), 0);
      ptx::mbarrier_wait(shape.value_barrier(), 0);
    }
    int tile = block.queries.first;
#pragma unroll 1
    for (int i = 0; i < block.steps; ++i) {
      step(i, tile * Config::kBlockQ);
      if (++tile == block.queries.end) tile = block.queries.first;
    }
    store<ValueGradient, Config::kHeadDimV>(args.dv, args.dv_strides, 1.0f);
    store<KeyGradient, Config::kHeadDim>(args.dk, args.dk_strides, args.scale);
  }

 private:
  // --- A tile of queries. Nothing is in flight before and after it -------------------------------------------------

  __device__ __forceinline__ void step(int i, int first_query) {
    queries.wait_full();
    issue_scores();
    gradients.wait_full();
    issue_probability_gradients();
    ptx::wgmma_wait_group<1>();
    const bool hides = hides_any(first_query);
    if (hides) hide(first_query);
    exponentiate();
    ptx::wgmma_wait_group<0>();
    if (hides)
      differentiate<true>();
    else
      differentiate<false>();
    const SmemAddress derivatives = shape.smem + Shape::kDerivatives + i % Shape::kDerivativeTiles * STile::kBytes;
    Scores::store(derivatives + warpgroup * STile::kPanelBytes +
                  STile::offset(lane() % 8 + lane() / 16 * 8, 2 * warp() + lane() / 8 % 2));
    add_values(i);
    ptx::fence_proxy_async();
    ptx::bar_sync<Shape::kConsumerThreads>(NamedBarrier::derivatives);
    multiply_queries(derivatives);
    ptx::wgmma_wait_group<1>();
    gradients.release(ptx::elect());
    add_keys(i);
    ptx::wgmma_wait_group<1>();
    send_queries(i);
    ptx::wgmma_wait_group<0>();
    queries.release(ptx::elect());
  }

  __device__ __forceinline__ void issue_scores() const {
    issue_rows<kDimSteps, KTile, QTile>(shape.keys(), queries.slot(),
                                        [](auto& keys, auto& rows) { Scores::issue_scores(keys, rows); });
  }
  __device__ __forceinline__ void issue_probability_gradients() const {
    issue_rows<kValueDimSteps, VTile, OTile>(shape.values(), gradients.slot(),
                                             [](auto& values, auto& rows) { Scores::issue_gradients(values, rows); });
  }
  // The warpgroup's keys by all rows of queries.
  template <int kSteps, class Keys, class Rows, class Issue>
  __device__ __forceinline__ void issue_rows(SmemAddress keys, SmemAddress rows, Issue issue) const {
    uint64 a[kSteps], b[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      a[k] = Keys::k_major(keys + warpgroup * kWarpgroupRows * Keys::kRowBytes) + Keys::k_major_step(k);
      b[k] = Rows::k_major(rows) + Rows::k_major_step(k);
    }
    ptx::wgmma_fence();
    issue(a, b);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void add_values(int i) const { add<ValueGradient, OTile>(gradients.slot(), i); }
  __device__ __forceinline__ void add_keys(int i) const { add<KeyGradient, QTile>(queries.slot(), i); }
  template <class Gradient, class Rows>
  __device__ __forceinline__ static void add(SmemAddress rows, int i) {
    uint64 b[kQuerySteps];
#pragma unroll
    for (int k = 0; k < kQuerySteps; ++k) b[k] = Rows::n_major(rows) + Rows::n_major_step(k);
    ptx::wgmma_fence();
    Gradient::issue(b, i != 0);
    ptx::wgmma_commit_group();
  }
  // The warpgroup's part of dS K.
  __device__ __forceinline__ void multiply_queries(SmemAddress derivatives) const {
    constexpr bool kRows = Shape::kPartsAreRows;
    const SmemAddress rows = derivatives + (kRows ? warpgroup * kWarpgroupRows * STile::kRowBytes : 0);
    const SmemAddress columns = shape.keys() + (kRows ? 0 : warpgroup * KTile::kPanelBytes);
    uint64 a[kKeySteps], b[kKeySteps];
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      a[k] = STile::k_major(rows) + STile::k_major_step(k);
      b[k] = KTile::n_major(columns) + KTile::n_major_step(k);
    }
    ptx::wgmma_fence();
    QueryGradient::issue(a, b, 0);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void send_queries(int i) const {
    ptx::mbarrier_wait(shape.part_empty(warpgroup), i % 2 ^ 1);
    QueryGradient::store(shape.part(warpgroup) + thread() * kChunkBytes);
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();
    if (ptx::elect()) ptx::mbarrier_arrive(shape.part_full(warpgroup));
  }

  // --- Scores. A lane has the keys of two rows, and of every eight queries two --------------------------------------

  // Whether masks hide any of the warpgroup's keys from any of the queries.
  __device__ __forceinline__ bool hides_any(int first_query) const {
    const int first = block.first_key + warpgroup * kWarpgroupRows, last = first + kWarpgroupRows - 1;
    bool hides = block.mask.last_key(first_query) < last;
    if constexpr (Mask<Config>::kBegins) hides |= block.mask.first_key(first_query + Config::kBlockQ - 1) > first;
    return hides;
  }
  __device__ __forceinline__ void hide(int first_query) const {
    const int key = block.first_key + warpgroup * kWarpgroupRows + warp() * 16 + lane() / 4;
    const int query = first_query + lane() % 4 * 2;
    const float hidden = unit < 0.0f ? infinity() : -infinity();
    const auto of_key = [&](int key) {
      return [this, hidden, key, query](float x, int offset) {
        bool sees = key <= block.mask.last_key(query + offset);
        if constexpr (Mask<Config>::kBegins) sees &= key >= block.mask.first_key(query + offset);
        return sees ? x : hidden;
      };
    };
    Scores::transform(of_key(key), of_key(key + 8));
  }
  __device__ __forceinline__ void exponentiate() const {
    const SmemAddress lse = shape.lse(queries.stage()) + lane() % 4 * 8;
    float of[2] = {};
    const auto lower = [&](float x, int offset) { return ptx::ex2(__fmaf_rn(x, unit, -of[offset % 2])); };
    const auto upper = [&](float x, int offset) {
      if (offset % 2 == 0) ptx::ld_shared(lse + offset * 4, of[0], of[1]);
      return lower(x, offset);
    };
    Scores::transform(upper, lower);
  }
  // kHides: what is hidden is 0 whatever its value is.
  template <bool kHides>
  __device__ __forceinline__ void differentiate() const {
    const SmemAddress sums = shape.row_sums(gradients.stage()) + lane() % 4 * 8;
    float of[2];
    const auto lower = [&](const float(&p)[2], const float(&dp)[2], int, uint32& probabilities, uint32& derivatives) {
      float ds[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        ds[e] = p[e] * (dp[e] - of[e]);
        if (kHides && p[e] == 0.0f) ds[e] = 0.0f;
      }
      probabilities = ptx::cvt_rn_x2(Element{}, p[0], p[1]);
      derivatives = ptx::cvt_rn_x2(Element{}, ds[0], ds[1]);
    };
    const auto upper = [&](const float(&p)[2], const float(&dp)[2], int offset, uint32& probabilities,
                           uint32& derivatives) {
      ptx::ld_shared(sums + offset * 4, of[0], of[1]);
      lower(p, dp, offset, probabilities, derivatives);
    };
    Scores::differentiate(upper, lower);
  }

  // --- What stays ----------------------------------------------------------------------------------------------------

  template <class Gradient, int kColumns>
  __device__ __forceinline__ void store(char* to, const RowStrides& strides, float scale) const {
    if (to == nullptr) return;
    float values[ceil_div(kColumns, 8) * 4];
    Gradient::read(values);
    const bool none = block.steps == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = block.first_key + warpgroup * kWarpgroupRows + warp() * 16 + 8 * half + lane() / 4;
      if (key >= args.sizes.seqlen_kv) continue;
      char* const row = to + block.keys.batch * strides.batch + block.keys.head * strides.head + key * strides.row;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const float x = values[4 * n + 2 * half] * scale, y = values[4 * n + 2 * half + 1] * scale;
        store_gradients(typename Config::GradientElement{}, row + (8 * n + lane() % 4 * 2) * Config::kGradientBytes,
                        none ? 0.0f : x, none ? 0.0f : y);
      }
    }
  }

  __device__ __forceinline__ static int thread() { return ptx::tid_x() % kWarpgroupSize; }
  __device__ __forceinline__ static int lane() { return ptx::tid_x() % kWarpSize; }
  __device__ __forceinline__ static int warp() { return thread() / kWarpSize; }

  const Block& block;
  const HopperBackwardArguments& args;
  const Shape shape;
  const int warpgroup;
  RingReader<typename Shape::QRing, 1> queries;
  RingReader<typename Shape::ORing, 1> gradients;
  const float unit;  // what scores are multiplied by, with its sign
};

template <class Config>
__device__ __forceinline__ void backward_hopper(const typename Config::Arguments& args, SmemAddress smem) {
  using Shape = HopperBackwardShape<Config>;
  const Shape shape{smem};
  if (ptx::tid_x() == 0) {
    ptx::prefetch_tensormap(args.core.k);
    ptx::prefetch_tensormap(args.core.q);
    ptx::prefetch_tensormap(args.core.v);
    ptx::prefetch_tensormap(args.core.dout);
    shape.init_barriers();
  }
  ptx::bar_sync();
  const HopperBackwardBlock<Config> block(args);
  const int warpgroup = ptx::shfl_first(ptx::tid_x() / kWarpgroupSize);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
    const int warp = ptx::tid_x() / kWarpSize;
    if (block.steps == 0 || ptx::tid_x() % kWarpSize != 0) return;
    if (warp == 0)
      HopperBackwardLoader<Config>{block, args.core, shape}.run();
    else if (warp <= Shape::kWarpgroups)
      HopperBackwardWriter<Config>{block, shape, warp - 1}.run();
  } else {
    ptx::setmaxnreg_inc<Shape::kConsumerRegisters>();
    HopperBackwardConsumer<Config>(block, shape, warpgroup - 1).run();
  }
}
