// SPDX-License-Identifier: Apache-2.0
#include "distributed/row_parts.h"

#include <algorithm>

namespace flashjit::distributed {
namespace {

Dims with_rows(Dims shape, std::int64_t count) {
  shape[seqlen_dim] = count;
  return shape;
}

}  // namespace

std::vector<CoveredRows> covered_rows(std::int64_t count, const std::vector<RowRange>& ranges) {
  std::vector<std::int64_t> ends{0, count};
  for (const RowRange& range : ranges) ends.insert(ends.end(), {range.first, range.first + range.count});
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::vector<CoveredRows> found;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    CoveredRows of{{ends[i], ends[i + 1] - ends[i]}, {}};
    for (std::size_t range = 0; range < ranges.size(); ++range)
      if (ranges[range].first <= ends[i] && ends[i + 1] <= ranges[range].first + ranges[range].count)
        of.by.push_back(range);
    found.push_back(std::move(of));
  }
  return found;
}

Summands::Memory Summands::make(const Workspace& work, const Tensor& like, DType dtype, std::int64_t count) {
  return {work.allocate(dtype, with_rows(like.shape, count))};
}
Tensor Summands::rows(const Tensor& view, const RowRange& of) {
  return distributed::rows(view, RowsView{of.first, of.count});
}
void Summands::join(const Workspace& work, const std::vector<Tensor>& parts, const Tensor& into) {
  work.sum(parts, into);
}

Attended::Memory Attended::make(const Workspace& work, const View& like, DType dtype, std::int64_t count) {
  const Dims shape = with_rows(like.out.shape, count);
  return {work.allocate(dtype, shape), work.allocate(DType::f32, {shape[batch_dim], shape[heads_dim], count})};
}
Attended::View Attended::rows(const View& view, const RowRange& of) {
  const RowsView rows{of.first, of.count};
  View found{distributed::rows(view.out, rows), std::nullopt};
  if (view.lse) found.lse = lse_rows(*view.lse, rows);
  return found;
}
void Attended::join(const Workspace& work, const std::vector<View>& parts, const View& into) {
  std::vector<Partial> with_lse;
  for (const View& part : parts) with_lse.push_back({part.out, *part.lse});
  work.merge(with_lse, into.out, into.lse);
}

}  // namespace flashjit::distributed
