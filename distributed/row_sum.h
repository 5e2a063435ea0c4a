// SPDX-License-Identifier: Apache-2.0
// The result of some rows of queries, of what calls over parts of the keys give.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "distributed/schedule.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

// Where results go, and the queries that they are of.
struct QueryRows {
  Tensor q, out;
  std::optional<Tensor> lse;
};

class RowSum {
 public:
  // parts: how many times add() will be called. Of one part the result is written where it belongs, and those of few
  // are joined at the end by one kernel; of more, some at a time are joined to a sum in f32, so that memory does not
  // grow with the number of ranks.
  RowSum(const Workspace& work, const QueryRows& rows, const AttentionOptions& options, std::int64_t parts);

  // Of keys of the block.
  void add(const Tensor& k, const Tensor& v, const BlockCall& call);
  // k, v: any of the call's; rows that saw none of their keys give what a call without keys gives.
  void finish(const Tensor& k, const Tensor& v);

 private:
  struct Part {
    DeviceTensor out, lse;
    Partial view() const { return {out, lse}; }
  };
  Part make_part(DType dtype) const;
  // Rows from first on, into those rows of the part.
  void attend(const RowRange& of, const Tensor& k, const Tensor& v, const Tensor& out, const std::optional<Tensor>& lse,
              AttentionOptions options) const;
  AttentionOptions options_of(const BlockCall& call) const;
  AttentionOptions options_without_keys() const;
  void merge(const std::vector<Partial>& parts, const Tensor& out, const std::optional<Tensor>& lse) const;
  std::vector<Partial> pending() const;
  void fold();

  const Workspace& work_;
  QueryRows rows_;
  AttentionOptions options_;  // of the next part: sinks are of the first
  std::int64_t parts_;
  std::vector<Part> pending_;  // in the dtype of the output
  std::optional<Part> sum_;    // in f32
};

}  // namespace flashjit::distributed
