// SPDX-License-Identifier: Apache-2.0
// Gradients by a ring. A node makes what its queries add to the gradients of the keys that come by, in f32, and sends
// it straight to the node that has these keys; so do the others to it. Sums are in the order of the ring's steps.
#include <memory>
#include <vector>

#include "distributed/block.h"
#include "distributed/gradients.h"
#include "distributed/part.h"
#include "distributed/row_parts.h"

namespace flashjit::distributed {
namespace {

// The gradient of rows of keys or of values, in f32.
class SumOfKeys {
 public:
  SumOfKeys(const Workspace& work, const Tensor& like, std::int64_t rows)
      : memory_(Summands::make(work, like, DType::f32, rows)),
        parts_(work, memory_.view(),
               [this, &work](const RowRange& of) { work.clear(Summands::rows(memory_.view(), of)); }) {}
  SumOfKeys(const SumOfKeys&) = delete;  // its parts know where it is

  RowParts<Summands>& parts() { return parts_; }
  Tensor finish() {
    parts_.finish(memory_.view());
    return memory_.view();
  }

 private:
  const Summands::Memory memory_;
  RowParts<Summands> parts_;
};

struct KeyGradients {
  KeyGradients(const Workspace& work, const Given& given, std::int64_t rows)
      : dk(work, given.k, rows), dv(work, given.v, rows) {}

  SumOfKeys dk, dv;
};

// What a step made of a block's gradients, on its way to whose keys they are of; and what others made of this node's.
class Returned {
 public:
  Returned(const GradientTask& task, const Step& step)
      : task_(task), step_(step), of_block_(task.work, task.given, length(step.block)), exchange_(task.work) {}

  KeyGradients& of_block() { return of_block_; }
  void start() {
    for (SumOfKeys* gradient : {&of_block_.dk, &of_block_.dv}) {
      const Tensor sum = gradient->finish();
      for (const Transfer& from : step_.receives)
        exchange_.send(peer(from), rows(sum, {from.rows.first, from.rows.count}));
    }
    for (const Tensor* like : {&task_.given.k, &task_.given.v})
      for (const Transfer& to : step_.sends) {
        received_.push_back(Summands::make(task_.work, *like, DType::f32, to.rows.count));
        exchange_.receive(peer(to), received_.back().view());
      }
    exchange_.start();
  }
  void finish(KeyGradients& own) {
    exchange_.finish();
    auto share = received_.begin();
    for (SumOfKeys* gradient : {&own.dk, &own.dv})
      for (const Transfer& to : step_.sends) gradient->parts().add(to.rows, std::move(*share++));
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
  std::vector<Summands::Memory> received_;
  ViewExchange exchange_;  // behind its memory, so that an unfinished one goes first
};

class Ring {
 public:
  explicit Ring(const GradientTask& task)
      : task_(task),
        dq_(task.work, task.into.dq,
            [&task](const RowRange& of) { task.work.clear(Summands::rows(task.into.dq, of)); }),
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
      for (const Sight& call : schedule[i].calls) differentiate(call, *block, made ? made->of_block() : own_);
      // Exchanges end in the order in which they began: this one before that of the next block.
      if (on_its_way) on_its_way->finish(own_);
      on_its_way = std::move(made);
      if (on_its_way) on_its_way->start();
    }
    if (on_its_way) on_its_way->finish(own_);
    dq_.finish(task_.into.dq);
    own_.dk.parts().finish(task_.into.dk);
    own_.dv.parts().finish(task_.into.dv);
  }

 private:
  std::unique_ptr<Block> block_of(const Step& step) const {
    return std::make_unique<Block>(task_.work, task_.plan.hosts.ranks_of_host, step,
                                   std::vector<Tensor>{task_.given.k, task_.given.v});
  }

  void differentiate(const Sight& call, const Block& block, KeyGradients& of_block) {
    const Given& given = task_.given;
    const RowsView queries{call.queries.first, call.queries.count}, keys{call.keys.first, call.keys.count};
    const Tensor q = rows(given.q, queries);
    GradientTensors into{dq_.make(call.queries), of_block.dk.parts().make(call.keys),
                         of_block.dv.parts().make(call.keys)};
    if (task_.into.dbias) into.dbias = seen_block(*task_.into.dbias, call);
    task_.work.attention_backward(rows(given.dout, queries), q, rows(block.tensor(0), keys),
                                  rows(block.tensor(1), keys), rows(given.out, queries), lse_rows(given.lse, queries),
                                  into, options_of_part(task_.work, task_.options, call, q.shape[batch_dim]),
                                  task_.backward);
  }

  const GradientTask& task_;
  RowParts<Summands> dq_;
  KeyGradients own_;
};

}  // namespace

void ring_gradients(const GradientTask& task) { Ring(task).run(); }

}  // namespace flashjit::distributed
