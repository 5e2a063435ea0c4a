// SPDX-License-Identifier: Apache-2.0
// Rows of several tensors that a step works with: the node's own, or memory that they come to.
#pragma once

#include <optional>
#include <vector>

#include "distributed/schedule.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

class Block {
 public:
  // Begins to bring them. own: what this node has, all with the same rows; of outputs with their LSE.
  Block(const Workspace& work, int ranks_of_host, const Step& step, const std::vector<Tensor>& own,
        const std::optional<Partial>& own_results = std::nullopt);
  // They are there for what follows on the stream.
  void finish() { exchange_.finish(); }

  const Tensor& tensor(std::size_t i) const { return tensors_[i]; }
  const Partial& results() const { return *results_; }

 private:
  template <typename Rows>
  void bring(int ranks_of_host, const Step& step, const Rows& own, const Rows& block);
  DeviceTensor& make(const Tensor& like, int seqlen_dim, std::int64_t rows);

  const Workspace& work_;
  std::vector<Tensor> tensors_;
  std::optional<Partial> results_;
  std::vector<DeviceTensor> memory_;
  ViewExchange exchange_;  // behind its memory, so that an unfinished one goes first
};

}  // namespace flashjit::distributed
