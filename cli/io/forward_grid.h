// SPDX-License-Identifier: Apache-2.0
// The grid of the FlashAttention-3 paper: 16384 tokens and a hidden dimension of 2048 in every cell.
#pragma once

#include <flashjit/engine.h>

#include <algorithm>
#include <vector>

namespace flashjit::cli {

inline constexpr std::int64_t kGridTokens = 16384;
inline constexpr std::int64_t kGridHidden = 2048;

struct GridCell {
  Problem problem;
  std::int64_t seqlen;

  Dims shape() const { return {kGridTokens / seqlen, seqlen, kGridHidden / problem.head_dim, problem.head_dim}; }
};

std::vector<GridCell> forward_grid(DType dtype, bool quick = false);

// The one of these records that is for the problem and the bucket; null when there is none.
template <class Record>
const Record* find_record(const std::vector<Record>& records, const decltype(Record::problem)& problem,
                          const ShapeBucket& bucket) {
  const auto found = std::find_if(records.begin(), records.end(), [&](const Record& record) {
    return record.problem == problem && record.bucket == bucket;
  });
  return found == records.end() ? nullptr : &*found;
}

// What calls of a cell get on a device: the choice of a record, if the policy has calls use them, or else the default.
class GridVariants {
 public:
  struct Choice {
    Variant variant;
    bool tuned = false;
  };
  GridVariants(const Engine& engine, const SystemInfo& system, const DeviceInfo& device);
  Choice of(const GridCell& cell) const;
  Variant default_of(const GridCell& cell) const;

 private:
  const Engine& engine_;
  const DeviceInfo device_;
  std::vector<TuningRecord> records_;
};

}  // namespace flashjit::cli
