// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/splits.h"

#include <algorithm>
#include <limits>

#include "generator/family.h"
#include "runtime/call/ragged.h"
#include "runtime/call/tensor_dims.h"
#include "runtime/support/ceil_quotient.h"

namespace flashjit::runtime {
namespace {

// A split has at least so many keys: shorter ones take longer to combine than they save.
constexpr std::int64_t kLeastKeys = 128;
constexpr std::int64_t kMostFixedKeys = std::int64_t{1} << 30;
// Where warps share rows: of a block of a cluster, and of a tile (docs/kernels/decode.md, "How many splits").
constexpr std::int64_t kLeastKeysOfBlock = 128, kLeastKeysOfPairs = 512;
constexpr std::int64_t kMostKeysOfClusters = 8192, kMostKeysOfFour = 2048;
// Of a block of a cluster that the longest sequence of a ragged batch may have.
constexpr std::int64_t kMostKeysOfRaggedBlock = 1024;
constexpr std::size_t kAlignment = 16;
// Of what the device chooses: tiles that are split have at most so many splits for each wanted tile together, as none
// is shorter than an equal share of all keys (templates/kernels/batch_plan.cuh), and each tile may have one that is
// shorter and one for where its keys begin.
constexpr std::int64_t kMostSplitsOfWanted = 4;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int64_t packs(const ForwardCall& call, const Tiling& tiling) { return call.num_heads_q / tiling.packed_heads; }

std::int64_t all_keys(const ForwardCall& call) {
  return call.problem.ragged ? std::numeric_limits<std::int32_t>::max() : call.seqlen_kv;
}

// Of a tile, beyond those that the keys which it sees fill: for where these begin, if not with the first one. Who may
// see all keys has as many as these fill, wherever its own begin.
std::int64_t extra_splits(const ForwardCall& call, const Tiling& tiling) {
  const bool begins_late = call.masks.window.left >= 0 || call.masks.chunk > 0;
  return begins_late && seen_keys(call, tiling) < all_keys(call) ? 1 : 0;
}

// Tiles that are computed together are split together, and are one here. At most, where batches are ragged.
std::int64_t tiles_of_call(const ForwardCall& call, const Tiling& tiling) {
  if (call.problem.ragged) return most_clusters(call, tiling) * packs(call, tiling);
  return call.batch * packs(call, tiling) * clusters_of_head(call, tiling);
}

std::int64_t rows_of_slot(const ForwardCall& call, const Tiling& tiling) {
  return std::min<std::int64_t>(tiling.cluster_rows(), call.seqlen_q * tiling.packed_heads);
}

// Of tiles that are all alike: as many splits as give no more than the wanted tiles.
void split_alike(Splitting& splitting, std::int64_t tiles, std::int64_t keys, std::int64_t block, std::int64_t extra) {
  if (2 * tiles > splitting.wanted_tiles) return;
  const std::int64_t most = splitting.wanted_tiles / tiles, blocks = ceil_quotient(keys, block);
  const std::int64_t of_split = std::max(ceil_quotient(blocks, most), ceil_quotient(kLeastKeys, block));
  const std::int64_t count = ceil_quotient(blocks, of_split);
  if (count == 1) return;
  splitting.keys = of_split * block;
  splitting.count = count + extra;
  splitting.slots = splitting.count * tiles;
}

// Of a fixed size, whatever the batch: all tiles have as many as the longest may have.
Splitting split_alike_everywhere(Splitting splitting, const ForwardCall& call, const Tiling& tiling, int sm_count) {
  constexpr std::int64_t kStep = 64;  // a multiple of the blocks of all variants for it
  const std::int64_t keys = std::min(seen_keys(call, tiling), call.seqlen_kv);
  splitting.keys = ceil_quotient(std::min(call.fixed_split, kMostFixedKeys), kStep) * kStep;
  splitting.wanted_tiles = sm_count;
  const std::int64_t most = ceil_quotient(keys, splitting.keys), extra = extra_splits(call, tiling);
  // Even a few keys that a tile sees of many may lie in two splits.
  if (call.seqlen_kv <= splitting.keys || most + extra <= 1) return splitting;
  splitting.count = most + extra;
  splitting.slots = splitting.count * tiles_of_call(call, tiling);
  if (call.problem.ragged) splitting.list_entries = most_clusters(call, tiling) * (splitting.count - 1);
  return splitting;
}

// Where warps share rows, half as many blocks as multiprocessors are as fast as the memory is, and more of them disturb
// each other there. Keys and values of 8 bits take longer to become elements, the more so the fewer a row has of them;
// but clusters do not find room for as many blocks as multiprocessors where a block is large.
struct Wanted {
  std::int64_t of_clusters, of_grid, of_ragged;
  std::int64_t most_keys_of_four;  // blocks of a cluster, some of which disturb each other
};
Wanted wanted_of_shared_rows(const Problem& problem, int sm_count) {
  if (!problem.e4m3) return {sm_count / 2, sm_count / 2, sm_count, kMostKeysOfFour};
  if (problem.head_dim > 64) return {sm_count / 2, sm_count, sm_count, kMostKeysOfClusters};
  return {sm_count, sm_count, 2 * sm_count, kMostKeysOfClusters};
}

// Else one for each block, or pair of blocks, that runs at once.
Wanted wanted_of_clusters(std::int64_t clusters) { return {0, clusters, clusters, 0}; }

// Blocks of a cluster, where they split the keys of a tile: as many as are wanted.
int blocks_of_cluster(std::int64_t tiles, std::int64_t keys, std::int64_t wanted) {
  int cluster = 1;
  for (const int size : {2, 4, 8})
    if (tiles * size <= wanted && keys >= size * kLeastKeysOfBlock) cluster = size;
  return cluster == 2 && keys < kLeastKeysOfPairs ? 1 : cluster;
}

// Many keys are split by the grid, as combining them is little beside.
bool is_split_by_grid(std::int64_t keys, int cluster, const Wanted& wanted) {
  return keys > (cluster == 4 ? wanted.most_keys_of_four : kMostKeysOfClusters);
}

// Where tiles are all alike. Pairs of blocks split any number of keys, and the grid what they have, too.
void split_shared(Splitting& splitting, std::int64_t tiles, std::int64_t keys, std::int64_t block, std::int64_t extra,
                  const Wanted& wanted) {
  const int cluster = blocks_of_cluster(tiles, keys, wanted.of_clusters);
  const bool by_grid = is_split_by_grid(keys, cluster, wanted);
  splitting.cluster = by_grid && cluster > 2 ? 1 : cluster;
  splitting.wanted_tiles /= splitting.cluster;
  if (by_grid) split_alike(splitting, tiles, keys, block, extra);
}

// Whether clusters are enough for a ragged batch: for few tiles, if none of its sequences can turn out to be so long
// that the device had better split it.
bool clusters_serve_ragged(std::int64_t most_tiles, std::int64_t most_keys, const Wanted& wanted, int cluster) {
  return most_tiles <= wanted.of_clusters && most_keys <= cluster * kMostKeysOfRaggedBlock &&
         !is_split_by_grid(most_keys, cluster, wanted);
}

}  // namespace

std::int64_t seen_keys(const ForwardCall& call, const Tiling& tiling) noexcept {
  const std::int64_t queries = ceil_quotient(tiling.cluster_rows(), tiling.packed_heads);
  if (call.problem.ragged) return keys_of_queries(call.masks, queries, all_keys(call));
  return keys_of_queries(call.masks, std::clamp<std::int64_t>(call.seqlen_q, 1, queries), call.seqlen_kv);
}

Splitting splitting_of(const ForwardCall& call, const Variant& variant, int sm_count) {
  Splitting splitting{.tiling = tiling_of(call, variant)};
  if (!generator::splits_kv(variant) || call.nothing_to_do() || call.seqlen_kv == 0) return splitting;
  const Tiling& tiling = splitting.tiling;
  splitting.rows = rows_of_slot(call, tiling);
  if (call.fixed_split > 0) return split_alike_everywhere(splitting, call, tiling, sm_count);
  const std::int64_t tiles = tiles_of_call(call, tiling), keys = std::min(seen_keys(call, tiling), call.seqlen_kv);
  const bool shared = generator::shares_rows(variant);
  const Wanted wanted =
      shared ? wanted_of_shared_rows(call.problem, sm_count) : wanted_of_clusters(sm_count / tiling.cluster);
  splitting.wanted_tiles = wanted.of_grid;
  if (call.problem.ragged) {
    const int cluster = blocks_of_cluster(tiles, keys, wanted.of_clusters);
    if (shared && clusters_serve_ragged(tiles, keys, wanted, cluster)) {
      splitting.cluster = cluster;
      return splitting;
    }
    splitting.wanted_tiles = wanted.of_ragged;
    splitting.slots = kMostSplitsOfWanted * splitting.wanted_tiles;
    splitting.list_entries = ceil_quotient(splitting.slots, packs(call, tiling));
    return splitting;
  }
  const std::int64_t extra = extra_splits(call, tiling);
  if (shared)
    split_shared(splitting, tiles, keys, block_kv(variant), extra, wanted);
  else
    split_alike(splitting, tiles, keys, block_kv(variant), extra);
  return splitting;
}

Scratch scratch_of(const ForwardCall& call, const Variant& variant, const Splitting& splitting) {
  Scratch scratch;
  if (call.problem.ragged) scratch.bytes = aligned(batch_plan_bytes(call, splitting.tiling, splitting.list_entries));
  if (!splitting.any()) return scratch;
  const auto rows = static_cast<std::size_t>(splitting.slots * splitting.rows);
  scratch.partials = scratch.bytes;
  scratch.weights =
      scratch.partials + aligned(rows * static_cast<std::size_t>(call.problem.head_dim_v) * sizeof(float));
  scratch.counters = scratch.weights + aligned(2 * rows * sizeof(float));
  const bool counts = generator::can_join_splits(variant);
  scratch.bytes = scratch.counters + aligned(counts ? static_cast<std::size_t>(splitting.slots) * sizeof(unsigned) : 0);
  return scratch;
}

bool joins_splits(const ForwardCall& call, const Variant& variant) noexcept {
  return (call.problem.ragged || call.plan) && generator::can_join_splits(variant);
}

std::span<std::byte> counters_of_plan(const ForwardCall& call, const Variant& variant, const Tensor& memory,
                                      int sm_count) {
  const Splitting splitting = splitting_of(call, variant, sm_count);
  if (!splitting.any() || !generator::can_join_splits(variant)) return {};
  const Scratch scratch = scratch_of(call, variant, splitting);
  return {static_cast<std::byte*>(memory.data) + scratch.counters, scratch.bytes - scratch.counters};
}

generator::SplitArguments split_arguments(const ForwardCall& call, const Variant& variant, const Splitting& splitting,
                                          const Scratch& scratch, std::byte* memory) {
  generator::SplitArguments arguments{};
  arguments.batch = static_cast<int>(call.batch);
  arguments.fixed = call.fixed_split > 0;
  arguments.out = static_cast<char*>(call.out->data);
  arguments.out_strides = row_strides(*call.out);
  if (!splitting.any()) return arguments;
  arguments.partials = reinterpret_cast<float*>(memory + scratch.partials);
  arguments.weights = reinterpret_cast<float*>(memory + scratch.weights);
  arguments.rows = static_cast<int>(splitting.rows);
  arguments.keys = static_cast<int>(splitting.keys);
  if (joins_splits(call, variant)) arguments.counters = reinterpret_cast<unsigned*>(memory + scratch.counters);
  if (call.problem.ragged) arguments.planned_keys = &batch_plan_head(memory)->split_keys;
  return arguments;
}

generator::CombineArguments combine_arguments(const ForwardCall& call, const Splitting& splitting,
                                              const Scratch& scratch, std::byte* memory) {
  const Tiling& tiling = splitting.tiling;
  generator::CombineArguments arguments{};
  arguments.partials = reinterpret_cast<const float*>(memory + scratch.partials);
  arguments.weights_of_partials = reinterpret_cast<const float*>(memory + scratch.weights);
  arguments.out = static_cast<char*>(call.out->data);
  arguments.out_strides = row_strides(*call.out);
  if (call.lse) {
    arguments.lse = static_cast<char*>(call.lse->data);
    arguments.lse_strides = lse_strides(*call.lse);
  }
  arguments.rows = static_cast<int>(splitting.rows);
  arguments.packed_heads_log2 = tiling.packed_heads_log2();
  arguments.block_rows = tiling.cluster_rows();
  arguments.heads = static_cast<int>(packs(call, tiling));
  arguments.head_dim_v = call.problem.head_dim_v;
  arguments.fixed = call.fixed_split > 0;
  if (call.problem.ragged) {
    arguments.planned = batch_plan_tiles(memory);
    arguments.head = batch_plan_head(memory);
    return arguments;
  }
  arguments.batch = static_cast<int>(call.batch);
  arguments.tiles = static_cast<int>(clusters_of_head(call, tiling));
  arguments.splits = static_cast<int>(splitting.count);
  arguments.queries = static_cast<int>(call.seqlen_q);
  return arguments;
}

std::int64_t combine_blocks(const ForwardCall& call, const Splitting& splitting) noexcept {
  const std::int64_t tiles = call.problem.ragged ? splitting.wanted_tiles : splitting.slots / splitting.count;
  return tiles * splitting.rows;
}

void set_splits(generator::BatchPlanMaker& maker, const ForwardCall& call, const Variant& variant,
                const Splitting& splitting, std::byte* memory) {
  const Tiling& tiling = splitting.tiling;
  maker.most_tiles += static_cast<unsigned>(splitting.list_entries);
  if (!splitting.any()) return;
  const int block = block_kv(variant);
  maker.wanted_tiles = static_cast<int>(splitting.wanted_tiles);
  maker.split_keys = static_cast<int>(splitting.keys);
  maker.least_keys = static_cast<int>(ceil_quotient(kLeastKeys, block) * block);
  maker.block_keys = block;
  // Of splits of a fixed size there is room for so many alone.
  const std::int64_t most_keys = call.fixed_split > 0 ? call.seqlen_kv : all_keys(call);
  maker.seen_keys = static_cast<int>(std::min(seen_keys(call, tiling), most_keys));
  maker.extra_splits = static_cast<int>(extra_splits(call, tiling));
  if (joins_splits(call, variant))
    maker.counters = reinterpret_cast<unsigned*>(memory + scratch_of(call, variant, splitting).counters);
}

}  // namespace flashjit::runtime
