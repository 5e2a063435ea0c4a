// SPDX-License-Identifier: Apache-2.0
// Gradients by a ring. A node makes what its queries add to the gradients of the keys that come by, in f32, and sends
// it straight to the node that has these keys; so do the others to it. Sums are in the order of the ring's steps.
#include <memory>
#include <vector>

#include "distributed/accumulator.h"
#include "distributed/block.h"
#include "distributed/gradients.h"
#include "distributed/part.h"

namespace flashjit::distributed {
namespace {

// Gradients of the rows of keys and values.
struct KeyGradients {
  KeyGradients(const Workspace& work, const Given& given, std::int64_t rows)
      : dk(work, of_rows(given.k.shape, rows)), dv(work, of_rows(given.v.shape, rows)) {}

  static Dims of_rows(Dims shape, std::int64_t rows) {
    shape[seqlen_dim] = rows;
    return shape;
  }

  Accumulator dk, dv;
};

// What a step made of a block's gradients, on its way to whose keys they are of; and what others made of this node's.
class Returned {
 public:
  Returned(const GradientTask& task, const Step& step)
      : task_(task), step_(step), of_block_(task.work, task.given, length(step.block)), exchange_(task.work) {}

  KeyGradients& of_block() { return of_block_; }
  void start() {
    for (Accumulator* gradient : {&of_block_.dk, &of_block_.dv})
      for (const Transfer& from : step_.receives)
        exchange_.send(peer(from), rows(gradient->rows(), {from.rows.first, from.rows.count}));
    for (const Tensor* like : {&task_.given.k, &task_.given.v})
      for (const Transfer& to : step_.sends) {
        received_.push_back(task_.work.allocate(DType::f32, KeyGradients::of_rows(like->shape, to.rows.count)));
        exchange_.receive(peer(to), received_.back());
      }
    exchange_.start();
  }
  void finish(KeyGradients& own) {
    exchange_.finish();
    auto share = received_.begin();
    for (Accumulator* gradient : {&own.dk, &own.dv})
      for (const Transfer& to : step_.sends) gradient->add({to.rows.first, to.rows.count}, *share++);
  }

 private:
  // Of a node's ranks, this one has to do with those that have its heads.
  int peer(const Transfer& transfer) const {
    const int ranks_of_host = task_.plan.hosts.ranks_of_host;
    return transfer.node * ranks_of_host + task_.work.rank() % ranks_of_host;
  }

  const GradientTask& task_;
  const Step& step_;
  KeyGradients of_block_;
  std::vector<DeviceTensor> received_;
  ViewExchange exchange_;  // behind its memory, so that an unfinished one goes first
};

class Ring {
 public:
  explicit Ring(const GradientTask& task)
      : task_(task),
        spans_(pieces(task.plan.hosts.queries_of(task.node()))),
        dq_(task.work, task.given.q.shape),
        own_(task.work, task.given, task.given.k.shape[seqlen_dim]) {}

  void run() {
    const Schedule& schedule = task_.plan.schedule;
    std::unique_ptr<Block> next = block_of(schedule[0]);
    std::unique_ptr<Returned> on_its_way;
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      const std::unique_ptr<Block> block = std::move(next);
      block->finish();
      if (i + 1 < schedule.size()) next = block_of(schedule[i + 1]);
      auto made = schedule[i].own ? nullptr : std::make_unique<Returned>(task_, schedule[i]);
      for (const BlockCall& call : schedule[i].calls) differentiate(call, *block, made ? made->of_block() : own_);
      // Exchanges end in the order in which they began: this one before that of the next block.
      if (on_its_way) on_its_way->finish(own_);
      on_its_way = std::move(made);
      if (on_its_way) on_its_way->start();
    }
    if (on_its_way) on_its_way->finish(own_);
    dq_.write(task_.into.dq);
    own_.dk.write(task_.into.dk);
    own_.dv.write(task_.into.dv);
  }

 private:
  std::unique_ptr<Block> block_of(const Step& step) const {
    return std::make_unique<Block>(task_.work, task_.plan.hosts.ranks_of_host, step,
                                   std::vector<Tensor>{task_.given.k, task_.given.v});
  }

  // The rows of a bias that a span of queries has.
  Tensor of_span(const Tensor& bias, const BlockCall& call) const {
    return query_rows(bias, {spans_[call.queries].row, spans_[call.queries].span.count});
  }

  void differentiate(const BlockCall& call, const Block& block, KeyGradients& of_block) {
    const Given& given = task_.given;
    const RowsView queries{spans_[call.queries].row + call.sight.queries.first, call.sight.queries.count},
        keys{call.sight.keys.first, call.sight.keys.count};
    const Tensor q = rows(given.q, queries), k = rows(block.tensor(0), keys), v = rows(block.tensor(1), keys);
    const DeviceTensor dq = task_.work.allocate(q.dtype, q.shape), dk = task_.work.allocate(DType::f32, k.shape),
                       dv = task_.work.allocate(DType::f32, v.shape);
    GradientTensors into{dq.view(), dk.view(), dv.view()};
    if (task_.into.dbias) into.dbias = seen_block(of_span(*task_.into.dbias, call), call.sight);
    AttentionOptions options = task_.options;
    if (options.bias) options.bias = of_span(*options.bias, call);
    task_.work.attention_backward(rows(given.dout, queries), q, k, v, rows(given.out, queries),
                                  lse_rows(given.lse, queries), into,
                                  options_of_part(task_.work, options, call.sight, q.shape[batch_dim]), task_.backward);
    dq_.add(queries, dq);
    of_block.dk.add(keys, dk);
    of_block.dv.add(keys, dv);
  }

  const GradientTask& task_;
  const std::vector<Piece> spans_;  // of the queries
  Accumulator dq_;
  KeyGradients own_;
};

}  // namespace

void ring_gradients(const GradientTask& task) { Ring(task).run(); }

}  // namespace flashjit::distributed
