// SPDX-License-Identifier: Apache-2.0
// Gradients of the rows that a node has, by each way in which nodes can make them.
#pragma once

#include <optional>

#include "distributed/plan.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

// What a node has, and where its gradients go.
struct Given {
  Tensor dout, q, k, v, out, lse;
};
struct Into {
  Tensor dq, dk, dv;
  // Of options, where they are wanted; that of a bias is of this rank's rows alone.
  std::optional<Tensor> dslopes = std::nullopt, dsinks = std::nullopt, dbias = std::nullopt;
};
struct GradientTask {
  const Workspace& work;
  const Plan& plan;
  const Given& given;
  const Into& into;
  const AttentionOptions& options;
  const BackwardOptions& backward;

  int node() const { return work.rank() / plan.hosts.ranks_of_host; }
};

// All that a gradient is a sum over comes to the node that has its rows.
void gather_gradients(const GradientTask& task);
// Keys and values come from one node after the other, and what they get of the node's queries goes back to where they
// are from, each under the kernels of the next one.
void ring_gradients(const GradientTask& task);

}  // namespace flashjit::distributed
