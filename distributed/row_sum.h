// SPDX-License-Identifier: Apache-2.0
// Attention of some queries, put together from calls that each have a part of the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "distributed/schedule.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

// Some queries, and where their results go.
struct QueryRows {
  Tensor q, out;
  std::optional<Tensor> lse;
};

class RowSum {
 public:
  // parts: how many times add() will be called. A single part writes its result where it belongs. A few parts are
  // joined at the end, by one kernel. Of more parts, some at a time are joined into a sum in f32, so that memory does
  // not grow with the number of ranks.
  RowSum(const Workspace& work, const QueryRows& rows, const AttentionOptions& options, std::int64_t parts);

  // Adds the part that a block's keys k and values v make.
  void add(const Tensor& k, const Tensor& v, const BlockCall& call);
  // Writes the results. If there was no part, the queries get what a call without keys gives: k and v are only asked
  // for their shape.
  void finish(const Tensor& k, const Tensor& v);

 private:
  struct Part {
    DeviceTensor out, lse;
    Partial view() const { return {out, lse}; }
  };
  Part make_part(DType dtype) const;
  // Calls attention for a range of the queries, and writes their rows of out and lse.
  void attend(const RowRange& of, const Tensor& k, const Tensor& v, const Tensor& out, const std::optional<Tensor>& lse,
              AttentionOptions options) const;
  AttentionOptions options_without_keys() const;
  std::vector<Partial> pending() const;
  void fold();

  const Workspace& work_;
  QueryRows rows_;
  AttentionOptions options_;  // of the next part; the first part alone has the sinks
  std::int64_t parts_;
  std::vector<Part> pending_;  // not joined yet, in the dtype of the output
  std::optional<Part> sum_;    // what was joined, in f32
};

}  // namespace flashjit::distributed
