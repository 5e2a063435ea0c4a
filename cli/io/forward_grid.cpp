// SPDX-License-Identifier: Apache-2.0
#include "cli/io/forward_grid.h"

#include <algorithm>

namespace flashjit::cli {
namespace {

ShapeBucket bucket_of(const GridCell& cell, int sm_count) {
  const Dims shape = cell.shape();
  return shape_bucket({shape[0], cell.seqlen, cell.seqlen, shape[2], shape[2]}, sm_count);
}

}  // namespace

std::vector<GridCell> forward_grid(DType dtype, bool quick) {
  const std::vector<std::int64_t> seqlens = quick ? std::vector<std::int64_t>{512, 4096, 16384}
                                                  : std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192, 16384};
  std::vector<GridCell> cells;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t seqlen : seqlens)
        cells.push_back({{.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim, .causal = causal}, seqlen});
    }
  }
  return cells;
}

GridVariants::GridVariants(const Engine& engine, const SystemInfo& system, const DeviceInfo& device)
    : engine_(engine), device_(device) {
  if (system.tuning != TuningPolicy::off) records_ = engine.tuning_records(device.ordinal);
}

GridVariants::Choice GridVariants::of(const GridCell& cell) const {
  const TuningRecord* const record = find_record(records_, cell.problem, bucket_of(cell, device_.sm_count));
  return record ? Choice{record->chosen, true} : Choice{default_of(cell), false};
}

Variant GridVariants::default_of(const GridCell& cell) const {
  return engine_.default_variant(cell.problem, device_.architecture, bucket_of(cell, device_.sm_count));
}

}  // namespace flashjit::cli
