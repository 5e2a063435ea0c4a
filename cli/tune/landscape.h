// SPDX-License-Identifier: Apache-2.0
// A record's measurements, seen from two sides: the tile, and how work overlaps.
#pragma once

#include <flashjit/tuning.h>

#include <string>
#include <vector>

namespace flashjit::cli {

// Of all candidates that agree in what is looked at, the fastest.
struct BestOf {
  const TunedCandidate* candidate = nullptr;
  int measured = 0;  // how many agree
};

struct TileLandscape {
  std::string family;
  std::vector<int> blocks_q, blocks_kv;  // rising
  // By block_q, then block_kv: as long as blocks_q times blocks_kv; without a candidate where there is none.
  std::vector<BestOf> cells;
  const BestOf& at(std::size_t row, std::size_t column) const { return cells[row * blocks_kv.size() + column]; }
};
// One for each family that was measured. Points into the record.
std::vector<TileLandscape> tile_landscapes(const TuningRecord& record);

// One way to overlap: "hopper, 2-stage, ping-pong in the products", "mma, rotate".
struct OverlapScheme {
  std::string name;
  BestOf best;
};
// In the order of the enums; only those that were measured.
std::vector<OverlapScheme> overlap_schemes(const TuningRecord& record);

// The shortest time of all; 0 when nothing was measured.
double best_us(const TuningRecord& record);

// What was not timed, and why.
std::vector<const TunedCandidate*> dropped_candidates(const TuningRecord& record);

}  // namespace flashjit::cli
