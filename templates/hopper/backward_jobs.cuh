// SPDX-License-Identifier: Apache-2.0
// What the thread blocks of the Hopper backward kernels do, one after the other: they draw tickets, of which each is a
// job. Before the gradients of a head's keys, some rows of its queries at a time, come the row sums and zeros for dQ,
// and behind them dQ is rounded.
#pragma once

#include "abi.cuh"
#include "attention/key_tile.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "types.cuh"

enum class HopperBackwardKind : uint32 { nothing, prepare, keys, finish, end };

template <class Config>
struct HopperBackwardJob {
  using Place = typename Config::Sequences::Place;
  static constexpr int kBytes = kChunkBytes + Place::kBytes;
  static constexpr int kRows = backward_job_rows(Config::kBlockQ);

  HopperBackwardKind kind;
  KeyTile tile;  // of rows: its index is theirs, among those of all query heads of the group
  Place place;   // of its sequence, keys and queries exchanged

  __device__ __forceinline__ void write(SmemAddress at) const {
    ptx::st_shared(at, ptx::Chunk{static_cast<uint32>(kind), static_cast<uint32>(tile.index),
                                  static_cast<uint32>(tile.head), static_cast<uint32>(tile.batch)});
    place.write(at + kChunkBytes);
  }
  __device__ __forceinline__ static HopperBackwardJob read(SmemAddress at) {
    const ptx::Chunk chunk = ptx::ld_shared(at);
    HopperBackwardJob job{static_cast<HopperBackwardKind>(chunk.x),
                          {static_cast<int>(chunk.y), static_cast<int>(chunk.z), static_cast<int>(chunk.w)},
                          {}};
    job.place.read(at + kChunkBytes);
    return job;
  }
  // By a whole warp, to which it is known to be the same in all lanes, so that descriptors are in uniform registers.
  __device__ __forceinline__ static HopperBackwardJob read_by_warp(SmemAddress at) {
    const HopperBackwardJob job = read(at);
    return {static_cast<HopperBackwardKind>(ptx::shfl_first(static_cast<int>(job.kind))),
            {ptx::shfl_first(job.tile.index), ptx::shfl_first(job.tile.head), ptx::shfl_first(job.tile.batch)},
            job.place.of_first_lane()};
  }
  __device__ __forceinline__ PlacedKeyTile<Config> placed(const ForwardSizes& sizes) const {
    return {sizes, {place, {tile.index, tile.head, tile.batch}}};
  }
};

// Sections of heads of keys, one after the other. Rows are prepared a section ahead of the keys and finished two behind
// them, so that nobody waits long for what others are still doing. In a section all three take turns, as rows are a
// matter of memory and keys one of products:
//   prepare 0 | prepare 1, keys 0 | prepare 2, keys 1 | prepare 3, keys 2, finish 0 | ... | finish n - 1, finish n
// Where a turn finds no more of its kind there is nothing to do.
template <class Config, bool kRagged = Config::Sequences::kRagged>
struct HopperBackwardJobs {
  using Job = HopperBackwardJob<Config>;
  using Kind = HopperBackwardKind;

  const ForwardSizes& sizes;
  const uint32 section_heads, heads, tiles, rows;  // tiles and jobs of rows: of a head

  __device__ __forceinline__ explicit HopperBackwardJobs(const typename Config::Arguments& launch)
      : sizes(launch.core.sizes),
        section_heads(sizes.heads_per_section),
        heads(sizes.batch * heads_of_batch()),
        tiles(KeyTile::tiles_of_head(sizes, Config::kBlockKv)),
        rows(ceil_div(sizes.num_q_tiles * Config::kBlockQ, Job::kRows) * sizes.heads_per_group) {}

  __device__ __forceinline__ Job of(uint32 ticket) const {
    const uint32 of_rows = section_heads * rows;
    if (ticket < of_rows) return rows_of(Kind::prepare, 0, ticket);
    ticket -= of_rows;
    // Of a round: so many of rows, of either kind, and then of keys.
    const uint32 row_turns = ceil_div(rows, tiles), key_turns = ceil_div(tiles, rows);
    const uint32 turns = 2 * row_turns + key_turns, rounds = section_heads * min(rows, tiles);
    const uint32 section = ticket / (rounds * turns), sections = (heads + section_heads - 1) / section_heads;
    const uint32 rest = ticket % (rounds * turns);
    const uint32 behind = ticket - sections * rounds * turns;  // the last section
    if (section >= sections)
      return behind < 2 * of_rows ? rows_of(Kind::finish, sections - 2, behind) : job(Kind::end, 0, 0);
    const uint32 round = rest / turns, turn = rest % turns;
    if (turn >= 2 * row_turns) return keys_of(section, round * key_turns + turn - 2 * row_turns);
    const uint32 row = round * row_turns + turn / 2;
    if (row >= of_rows) return job(Kind::nothing, 0, 0);
    return turn % 2 == 0 ? rows_of(Kind::prepare, section + 1, row) : rows_of(Kind::finish, section - 2, row);
  }
  // Of the job's head, and those that others wait for: jobs of rows of all its queries, and its tiles of keys.
  __device__ __forceinline__ uint32 rows_beside(const Job&) const { return rows; }
  __device__ __forceinline__ uint32 tiles_beside(const Job&) const { return tiles; }
  __device__ __forceinline__ uint32 index_of(const KeyTile& tile) const {
    return tile.batch * heads_of_batch() + tile.head;
  }

 private:
  __device__ __forceinline__ uint32 heads_of_batch() const { return sizes.num_heads_q / sizes.heads_per_group; }
  __device__ __forceinline__ Job rows_of(Kind kind, uint32 section, uint32 index) const {
    return job(kind, section * section_heads + index / rows, index % rows);
  }
  // The first tiles see the most queries. Where tiles take turns, the last come first: attention/turns.cuh.
  __device__ __forceinline__ Job keys_of(uint32 section, uint32 index) const {
    if (index >= section_heads * tiles) return job(Kind::nothing, 0, 0);
    constexpr bool kLongestFirst = Config::kLongestFirst;
    const uint32 tile = kLongestFirst ? index / section_heads : index % tiles;
    const uint32 head = kLongestFirst ? index % section_heads : index / tiles;
    return job(Kind::keys, section * section_heads + head, Config::kDeterministic ? tiles - 1 - tile : tile);
  }
  // A section before the first has no heads, as one behind the last.
  __device__ __forceinline__ Job job(Kind kind, uint32 head, uint32 index) const {
    if (head >= heads) kind = Kind::nothing;
    const uint32 of_batch = heads_of_batch();
    return {kind, {static_cast<int>(index), static_cast<int>(head % of_batch), static_cast<int>(head / of_batch)}, {}};
  }
};

// Of a ragged batch: all rows are prepared before the first tile of keys, and finished behind the last, by two lists of
// tiles, of keys and of rows.
template <class Config>
struct HopperBackwardJobs<Config, true> {
  using Job = HopperBackwardJob<Config>;
  using Kind = HopperBackwardKind;
  using Sequences = typename Config::Sequences;

  const typename Config::Arguments& launch;
  const int groups;          // heads of keys
  const uint32 tiles, rows;  // jobs of all heads

  __device__ __forceinline__ explicit HopperBackwardJobs(const typename Config::Arguments& launch_)
      : launch(launch_),
        groups(sizes().num_heads_q / sizes().heads_per_group),
        tiles(launch.ragged.head->tiles * groups),
        rows(launch.rows.ragged.head->tiles * sizes().num_heads_q) {}

  __device__ __forceinline__ Job of(uint32 ticket) const {
    if (ticket < rows) return rows_of(Kind::prepare, ticket);
    ticket -= rows;
    if (ticket < tiles) return keys_of(ticket);
    ticket -= tiles;
    return ticket < rows ? rows_of(Kind::finish, ticket) : Job{Kind::end, {0, 0, 0}, {}};
  }
  __device__ __forceinline__ uint32 rows_beside(const Job& job) const {
    return jobs_of(job.place.of.keys) * sizes().heads_per_group;
  }
  __device__ __forceinline__ uint32 tiles_beside(const Job& job) const {
    return ceil_div(job.place.of.queries, Config::kBlockKv);
  }
  __device__ __forceinline__ uint32 index_of(const KeyTile& tile) const { return tile.batch * groups + tile.head; }

 private:
  __device__ __forceinline__ const ForwardSizes& sizes() const { return launch.core.sizes; }
  __device__ __forceinline__ static int jobs_of(int queries) { return ceil_div(queries, Job::kRows); }
  __device__ __forceinline__ Job keys_of(uint32 index) const {
    const auto tile = PlacedKeyTile<Config>::find(launch, index);
    return {Kind::keys, {tile.index, tile.head, tile.batch}, tile};
  }
  __device__ __forceinline__ Job rows_of(Kind kind, uint32 index) const {
    const auto tile = Sequences(launch.rows).template tile<false, false, false>(sizes(), index);
    const int group = sizes().heads_per_group;
    return {kind,
            {tile.head % group * jobs_of(tile.of.queries) + tile.index, tile.head / group, tile.batch},
            tile.exchanged()};
  }
};

// What others wait for, of each head of keys: two counters behind that of tickets.
struct HopperBackwardCounters {
  uint32* const tickets;

  __device__ __forceinline__ uint32* prepared(uint32 head) const { return tickets + 1 + 2 * head; }
  __device__ __forceinline__ uint32* added(uint32 head) const { return tickets + 2 + 2 * head; }
};

// Goes through the jobs that the loader announces, of which each stays in its slot until it is done.
template <class Jobs, class Read, class Take>
__device__ __forceinline__ void for_each_job(Jobs& jobs, Read read, Take take) {
#pragma unroll 1
  for (;;) {
    jobs.wait_full();
    const auto job = read(jobs.slot());
    if (job.kind == HopperBackwardKind::end) return;
    take(job);
    jobs.release(true);
  }
}
