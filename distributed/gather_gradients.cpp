// SPDX-License-Identifier: Apache-2.0
// Gradients of which nothing is added up across nodes: whoever makes one has all that it is a sum over.
#include <span>
#include <stdexcept>
#include <vector>

#include "distributed/block.h"
#include "distributed/gradients.h"
#include "distributed/part.h"

namespace flashjit::distributed {
namespace {

// Calls on parts of this rank's rows, by the positions of which gradients there are of which.
class GatheredGradients {
 public:
  explicit GatheredGradients(const GradientTask& task)
      : task_(task), work_(task.work), nodes_(task.plan.hosts.nodes()), given_(task.given), into_(task.into) {}

  void of_queries() const {
    const Step step = all_gather_schedule(nodes_, work_.rank()).front();
    Block keys(work_, 1, step, {given_.k, given_.v});
    keys.finish();
    const OrderedPieces block(pieces(step.block), nodes_.mask.sequences);
    for (const Piece& own : pieces(own_spans(nodes_.queries))) {
      const std::vector<Pair> calls = pairs({&own, 1}, block.beside(own.span));
      for (const Pair& call : calls)
        differentiate(call, given_, {keys.tensor(0), keys.tensor(1)}, {rows(into_.dq, call.queries), {}, {}});
      const std::int64_t done = calls.empty() ? 0 : calls.front().queries.count;
      clear(into_.dq, given_.q, {own.row + done, own.span.count - done});
    }
  }

  // The same with queries and keys in each other's place.
  void of_keys() const {
    const Step step = all_gather_schedule(mirrored(nodes_), work_.rank()).front();
    Block queries(work_, 1, step, {given_.dout, given_.q}, Partial{given_.out, given_.lse});
    queries.finish();
    const Given of{queries.tensor(0), queries.tensor(1),     given_.k,
                   given_.v,          queries.results().out, queries.results().lse};
    const OrderedPieces block(pieces(step.block), nodes_.mask.sequences);
    for (const Piece& own : pieces(own_spans(nodes_.keys))) {
      const std::vector<Pair> calls = pairs(block.beside(own.span), {&own, 1});
      for (const Pair& call : calls)
        differentiate(call, of, {given_.k, given_.v}, {{}, rows(into_.dk, call.keys), rows(into_.dv, call.keys)});
      const RowsView seen = calls.empty() ? RowsView{own.row, 0} : calls.front().keys;
      const std::int64_t before = seen.first - own.row, end = seen.first + seen.count;
      for (const RowsView& unseen : {RowsView{own.row, before}, RowsView{end, own.row + own.span.count - end}}) {
        clear(into_.dk, given_.k, unseen);
        clear(into_.dv, given_.v, unseen);
      }
    }
  }

 private:
  // Rows of queries and of keys that see each other.
  struct Pair {
    RowsView queries, keys;
    Sight sight;
  };
  struct KeyTensors {
    Tensor k, v;
  };

  const std::vector<Span>& own_spans(const std::vector<std::vector<Span>>& of_nodes) const {
    return of_nodes[static_cast<std::size_t>(work_.rank())];
  }

  // Of spans without gaps what one sees is one range, and stands in one piece of what was gathered.
  std::vector<Pair> pairs(std::span<const Piece> queries, std::span<const Piece> keys) const {
    std::vector<Pair> found;
    for (const Piece& by : queries)
      for (const Piece& of : keys)
        if (const std::optional<Sight> view = sight(by.span, of.span, nodes_.mask))
          found.push_back({{by.row + view->queries.first, view->queries.count},
                           {of.row + view->keys.first, view->keys.count},
                           *view});
    if (found.size() > 1) throw std::logic_error("gradients of rows are in more than one call");
    return found;
  }

  void differentiate(const Pair& call, const Given& of, const KeyTensors& keys, const GradientTensors& into) const {
    work_.attention_backward(rows(of.dout, call.queries), rows(of.q, call.queries), rows(keys.k, call.keys),
                             rows(keys.v, call.keys), rows(of.out, call.queries), lse_rows(of.lse, call.queries), into,
                             options_of_part(work_, task_.options, call.sight, of.q.shape[batch_dim]), task_.backward);
  }

  // Attention that sees no key gives 0.
  void clear(const Tensor& gradient, const Tensor& of, const RowsView& view) const {
    if (is_empty(rows(gradient, view))) return;
    const Tensor none = rows(of, {0, 0});
    work_.attention(rows(of, view), none, none, rows(gradient, view), {});
  }

  const GradientTask& task_;
  const Workspace& work_;
  const Nodes nodes_;
  const Given& given_;
  const Into& into_;
};

}  // namespace

void gather_gradients(const GradientTask& task) {
  const GatheredGradients gradients(task);
  gradients.of_queries();
  gradients.of_keys();
}

}  // namespace flashjit::distributed
