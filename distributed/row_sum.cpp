// SPDX-License-Identifier: Apache-2.0
#include "distributed/row_sum.h"

#include <utility>

#include "distributed/part.h"

namespace flashjit::distributed {
namespace {

// What is kept of results in the dtype of the output before they become a sum in f32: that takes as much memory again.
constexpr std::size_t kMostPending = 4;

}  // namespace

RowSum::RowSum(const Workspace& work, const QueryRows& rows, const AttentionOptions& options, std::int64_t parts)
    : work_(work), rows_(rows), options_(options), parts_(parts) {}

RowSum::Part RowSum::make_part(DType dtype) const {
  const Dims& shape = rows_.out.shape;
  return {work_.allocate(dtype, shape),
          work_.allocate(DType::f32, {shape[batch_dim], shape[heads_dim], shape[seqlen_dim]})};
}

void RowSum::attend(const RowRange& of, const Tensor& k, const Tensor& v, const Tensor& out,
                    const std::optional<Tensor>& lse, AttentionOptions options) const {
  const RowsView view{of.first, of.count};
  options.lse.reset();
  if (lse) options.lse = lse_rows(*lse, view);
  work_.attention(rows(rows_.q, view), k, v, rows(out, view), options);
}

// Of rows that see nothing whatever functions and masks say.
AttentionOptions RowSum::options_without_keys() const {
  AttentionOptions options = options_;
  options.causal = false;
  options.window = {};
  options.score.reset();
  options.mask.reset();
  options.bias.reset();
  return options;
}

void RowSum::add(const Tensor& k, const Tensor& v, const BlockCall& call) {
  const Sight& sight = call.sight;
  const std::int64_t before = sight.queries.first, end = before + sight.queries.count;
  const bool is_all = parts_ == 1;
  if (!is_all) pending_.push_back(make_part(rows_.out.dtype));
  const Tensor& out = is_all ? rows_.out : pending_.back().out.view();
  const std::optional<Tensor> lse = is_all ? rows_.lse : std::optional<Tensor>(pending_.back().lse.view());
  const RowsView keys{sight.keys.first, sight.keys.count}, none{0, 0};
  attend(sight.queries, rows(k, keys), rows(v, keys), out, lse,
         options_of_part(work_, options_, sight, rows_.q.shape[batch_dim]));
  for (const RowRange& unseeing : {RowRange{0, before}, RowRange{end, rows_.q.shape[seqlen_dim] - end}})
    if (unseeing.count > 0) attend(unseeing, rows(k, none), rows(v, none), out, lse, options_without_keys());
  options_.sinks.reset();
  if (pending_.size() == kMostPending && parts_ > static_cast<std::int64_t>(kMostPending)) fold();
}

std::vector<Partial> RowSum::pending() const {
  std::vector<Partial> parts;
  for (const Part& part : pending_) parts.push_back(part.view());
  return parts;
}

void RowSum::fold() {
  Part folded = make_part(DType::f32);
  work_.merge(pending(), folded.out, folded.lse.view());
  pending_.clear();
  if (sum_)
    work_.merge({sum_->view(), folded.view()}, sum_->out, sum_->lse.view());
  else
    sum_ = std::move(folded);
}

void RowSum::finish(const Tensor& k, const Tensor& v) {
  if (parts_ == 1) return;
  if (parts_ == 0) {
    attend({0, rows_.q.shape[seqlen_dim]}, rows(k, {0, 0}), rows(v, {0, 0}), rows_.out, rows_.lse,
           options_without_keys());
    return;
  }
  if (sum_ && !pending_.empty()) fold();
  work_.merge(sum_ ? std::vector<Partial>{sum_->view()} : pending(), rows_.out, rows_.lse);
}

}  // namespace flashjit::distributed
