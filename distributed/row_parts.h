// SPDX-License-Identifier: Apache-2.0
// Rows that calls make, of some of them each, and put together where several calls have made the same ones.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/workspace.h"

namespace flashjit::distributed {

// Rows that are in the same ranges, and the indices of these, ascending.
struct CoveredRows {
  RowRange rows;
  std::vector<std::size_t> by;
};
// Of count rows, in ascending order, all of them.
std::vector<CoveredRows> covered_rows(std::int64_t count, const std::vector<RowRange>& ranges);

// Parts that are added up.
struct Summands {
  using View = Tensor;
  struct Memory {
    DeviceTensor rows;
    Tensor view() const { return rows; }
  };
  static Memory make(const Workspace& work, const Tensor& like, DType dtype, std::int64_t count);
  static DType dtype(const Tensor& view) { return view.dtype; }
  static const Tensor& tensor(const Tensor& view) { return view; }
  static Tensor rows(const Tensor& view, const RowRange& of);
  static void join(const Workspace& work, const std::vector<Tensor>& parts, const Tensor& into);
};

// Parts that each have attended to some of the keys, and are joined by their LSE.
struct Attended {
  struct View {
    Tensor out;
    std::optional<Tensor> lse;  // parts that are joined have one
  };
  struct Memory {
    DeviceTensor out, lse;
    View view() const { return {out, lse}; }
  };
  static Memory make(const Workspace& work, const View& like, DType dtype, std::int64_t count);
  static DType dtype(const View& view) { return view.out.dtype; }
  static const Tensor& tensor(const View& view) { return view.out; }
  static View rows(const View& view, const RowRange& of);
  static void join(const Workspace& work, const std::vector<View>& parts, const View& into);
};

template <class Kind>
class RowParts {
 public:
  using View = typename Kind::View;
  using Memory = typename Kind::Memory;
  using Fill = std::function<void(const RowRange& rows)>;

  // place: where the first part of each row is made, so that rows with a single part are where they belong. fill makes
  // there the rows that have none, with what a sum of nothing is.
  RowParts(const Workspace& work, const View& place, Fill fill)
      : work_(work), place_(place), fill_(std::move(fill)), count_(Kind::tensor(place).shape[seqlen_dim]) {}

  // Whether the next part of these rows is their first one, made in their place.
  bool is_first(const RowRange& rows) const {
    for (const RowRange& other : in_place_)
      if (overlap(rows, other)) return false;
    return !sum_;
  }
  // Where a call is to make a part of these rows.
  View make(const RowRange& rows) {
    if (is_first(rows)) {
      in_place_.push_back(rows);
      return Kind::rows(place_, rows);
    }
    add(rows, Kind::make(work_, place_, Kind::dtype(place_), rows.count));
    return pending_.back().second.view();
  }
  // A part that somebody else has made, of the dtype of the place.
  void add(const RowRange& rows, Memory part) {
    if (pending_rows_ + rows.count > most_pending() * count_ || pending_of(rows) == kMostPendingOfRow) fold();
    pending_rows_ += rows.count;
    pending_.emplace_back(rows, std::move(part));
  }
  // Writes all rows, of any dtype; into may be the place.
  void finish(const View& into) {
    if (sum_) {
      fold();
      Kind::join(work_, {sum_->view()}, into);
      return;
    }
    fill_vacant();
    const bool is_place = Kind::tensor(into).data == Kind::tensor(place_).data;
    for (const CoveredRows& of : covered())
      if (!is_place || of.by.size() > 1) Kind::join(work_, parts_of(of), Kind::rows(into, of.rows));
  }

 private:
  static constexpr std::size_t kMostPendingOfRow = 8;  // a kernel that joins parts takes twice as many

  static bool overlap(const RowRange& a, const RowRange& b) {
    return a.first < b.first + b.count && b.first < a.first + a.count;
  }
  std::size_t pending_of(const RowRange& rows) const {
    std::size_t count = 0;
    for (const auto& [others, part] : pending_) count += overlap(rows, others);
    return count;
  }
  bool is_of_f32() const { return Kind::dtype(place_) == DType::f32; }
  // How many times all rows are kept beside the place before they become a sum in f32: so memory does not grow with
  // the number of parts.
  std::int64_t most_pending() const { return is_of_f32() ? 2 : 3; }

  std::vector<CoveredRows> covered() const {
    std::vector<RowRange> ranges = in_place_;
    for (const auto& [rows, part] : pending_) ranges.push_back(rows);
    return covered_rows(count_, ranges);
  }
  std::vector<View> parts_of(const CoveredRows& of) const {
    std::vector<View> parts;
    for (const std::size_t i : of.by) {
      if (i < in_place_.size()) {
        parts.push_back(Kind::rows(place_, of.rows));
        continue;
      }
      const auto& [rows, part] = pending_[i - in_place_.size()];
      parts.push_back(Kind::rows(part.view(), {of.rows.first - rows.first, of.rows.count}));
    }
    return parts;
  }
  void fill_vacant() {
    for (const CoveredRows& of : covered_rows(count_, in_place_))
      if (of.by.empty()) {
        fill_(of.rows);
        in_place_.push_back(of.rows);
      }
  }
  // Joins what there is in f32.
  void fold() {
    const bool is_first_time = !sum_;
    if (is_first_time) fill_vacant();
    if (is_first_time && !is_of_f32()) sum_ = Kind::make(work_, place_, DType::f32, count_);
    for (const CoveredRows& of : covered())
      if (!of.by.empty()) fold(of, is_first_time);
    in_place_.clear();
    if (is_of_f32()) in_place_.push_back({0, count_});
    pending_.clear();
    pending_rows_ = 0;
  }
  void fold(const CoveredRows& of, bool is_first_time) {
    const View sum = Kind::rows(is_of_f32() ? place_ : sum_->view(), of.rows);
    if (is_first_time) {
      Kind::join(work_, parts_of(of), sum);
      return;
    }
    const Memory folded = Kind::make(work_, place_, DType::f32, of.rows.count);
    Kind::join(work_, parts_of(of), folded.view());
    Kind::join(work_, {sum, folded.view()}, sum);
  }

  const Workspace& work_;
  const View place_;
  const Fill fill_;
  const std::int64_t count_;
  std::vector<RowRange> in_place_;
  std::vector<std::pair<RowRange, Memory>> pending_;
  std::int64_t pending_rows_ = 0;
  std::optional<Memory> sum_;
};

}  // namespace flashjit::distributed
