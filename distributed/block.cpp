// SPDX-License-Identifier: Apache-2.0
#include "distributed/block.h"

namespace flashjit::distributed {
namespace {

constexpr int kLseSeqlenDim = 2;

}  // namespace

Block::Block(const Workspace& work, int ranks_of_host, const Step& step, const std::vector<Tensor>& own,
             const std::optional<Partial>& own_results)
    : work_(work), tensors_(own), results_(own_results), exchange_(work) {
  if (step.own) return;
  const std::int64_t rows = length(step.block);
  for (std::size_t i = 0; i < own.size(); ++i) {
    tensors_[i] = make(own[i], seqlen_dim, rows);
    bring(ranks_of_host, step, own[i], tensors_[i]);
  }
  if (own_results) {
    results_->out = make(own_results->out, seqlen_dim, rows);
    results_->lse = make(own_results->lse, kLseSeqlenDim, rows);
    bring(ranks_of_host, step, *own_results, *results_);
  }
  exchange_.start();
}

DeviceTensor& Block::make(const Tensor& like, int dim, std::int64_t rows) {
  Dims shape = like.shape;
  shape[dim] = rows;
  return memory_.emplace_back(work_.allocate(like.dtype, shape));
}

// Of a node's ranks, this one has to do with those that have its heads.
template <typename Rows>
void Block::bring(int ranks_of_host, const Step& step, const Rows& own, const Rows& block) {
  const int lane = work_.rank() % ranks_of_host;
  for (const Transfer& to : step.sends)
    exchange_.send(to.node * ranks_of_host + lane, rows(own, {to.rows.first, to.rows.count}));
  for (const Transfer& from : step.receives)
    exchange_.receive(from.node * ranks_of_host + lane, rows(block, {from.rows.first, from.rows.count}));
}

}  // namespace flashjit::distributed
