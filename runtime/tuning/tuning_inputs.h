// SPDX-License-Identifier: Apache-2.0
// What candidates are run on, and what must come out. Knows no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/reference.h"
#include "flashjit/tensor.h"
#include "flashjit/tuning.h"
#include "runtime/tuning/option_tensors.h"

namespace flashjit::runtime {

// Of the tensors of a call.
struct TensorShapes {
  TensorShapes(const Problem& problem, const CallShape& shape)
      : q{shape.batch, shape.seqlen_q, shape.num_heads_q, problem.head_dim},
        k{shape.batch, shape.seqlen_kv, shape.num_heads_kv, problem.k_rotary ? problem.head_dim_v : problem.head_dim},
        v{shape.batch, shape.seqlen_kv, shape.num_heads_kv, problem.head_dim_v},
        out{shape.batch, shape.seqlen_q, shape.num_heads_q, problem.head_dim_v},
        lse{shape.batch, shape.num_heads_q, shape.seqlen_q} {}

  Dims q, k, v, out, lse;
};

// What of a call fits beside its q, k and v.
struct TuningCall {
  AttentionOptions options_on_host() const;  // with the tensors
  // Of the block mask that a problem may have beside them: with one batch entry or head where the predicates are the
  // same for all. It is made of the predicates where the call runs.
  CallShape block_mask_shape() const;

  Problem problem;
  CallShape shape;
  AttentionOptions options;           // without them
  std::vector<OptionTensor> tensors;  // one for each feature of the problem that has such, and what functions capture
};

struct Expected {
  reference::Result exact, low;
};

// Of rows [batch, seqlen, heads, head_dim] the first columns: of a view, and as a tensor of their own.
Tensor first_columns(Tensor rows, std::int64_t columns);
HostTensor first_columns(const HostTensor& rows, std::int64_t columns);

// A small call that is checked whole. Throws Error(unsupported) for a problem that is not its own class, and
// Error(invalid_argument) for a block mask without a predicate.
struct CheckCase : TuningCall {
  CheckCase(const Problem& problem, const CallShape& shape);
  Expected expected() const;

  HostTensor q, k, v;
};
// With lengths that no tile divides, a last tile of few rows, more keys than any ring of tiles holds, fewer keys than
// queries, heads that share keys, and maxima that jump.
std::vector<CheckCase> make_check_cases(const Problem& problem);

// A large tensor of normal numbers without drawing them all: a block of them, again and again. The length of the block
// is odd, so rows that repeat begin elsewhere in it, and products of rows do not repeat.
class RepeatedNormal {
 public:
  RepeatedNormal(DType dtype, const Dims& shape, std::uint64_t seed);

  const HostTensor& block() const noexcept { return block_; }
  // Rows of one head of [batch, seqlen, heads, head_dim], as a tensor [1, count, 1, head_dim].
  HostTensor rows(std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count) const;

 private:
  Dims shape_;
  HostTensor block_;
};

// The call that is timed. With a window or chunks, the shape that is asked for has the keys that a query sees, and the
// call more of them; with a tree at least one for each query. Of its output a few rows are checked: the last ones of
// the last head, which end every order of the tiles and have the highest addresses. With more keys than the reference
// can do beside the compiler: none.
struct TimedCase : TuningCall {
  // Sizes of at least 1. Throws Error(invalid_argument) when memory could never hold them, and as CheckCase does.
  TimedCase(const Problem& problem, const CallShape& shape);
  std::int64_t checked_rows() const noexcept;
  Expected expected() const;  // of these rows: [1, checked_rows, 1, head_dim_v]

  RepeatedNormal q, k, v;
};

}  // namespace flashjit::runtime
