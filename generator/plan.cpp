// SPDX-License-Identifier: Apache-2.0
#include "generator/plan.h"

#include <fmt/format.h>

#include "flashjit/error.h"

namespace flashjit::generator {

Plan make_plan(const Problem& problem, const Variant& variant) {
  return std::visit([&](const auto& of_family) { return make_plan(problem, of_family); }, variant);
}

std::int64_t tile_count(const TileGrid& grid) {
  constexpr std::int64_t kMaxGrid = 0x7fffffff;  // gridDim.x: CUDA C++ Programming Guide, "Technical Specifications"
  std::int64_t heads = 0, tiles = 0;
  if (__builtin_mul_overflow(grid.batch, grid.heads, &heads) ||
      __builtin_mul_overflow(heads, grid.tiles_per_head, &tiles) || tiles > kMaxGrid)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("q: batch * heads * tiles of a head must be at most {}, was {} * {} * {}", kMaxGrid,
                            grid.batch, grid.heads, grid.tiles_per_head));
  return tiles;
}

}  // namespace flashjit::generator
