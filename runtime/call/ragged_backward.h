// SPDX-License-Identifier: Apache-2.0
// Gradients of batches whose sequences are not equally long (runtime/call/ragged.h). Their kernel takes tiles of keys
// by a list that is made of the batch with queries and keys exchanged.
#pragma once

#include <cstdint>

#include "flashjit/backward.h"
#include "runtime/call/backward.h"
#include "runtime/call/ragged.h"

namespace flashjit::runtime {

// A call of which some packed tensor has no dimension of batches, with it.
struct GradientsWithBatch {
  static bool is_needed(const GivenGradients& given) noexcept;
  explicit GradientsWithBatch(const GivenGradients& given);
  // Points to this.
  GivenGradients given() const { return {dout, call.q, call.k, call.v, call.out, lse, into, call.opts, backward}; }

  CallWithBatch call;
  Tensor dout, lse;
  GradientTensors into;
  BackwardOptions backward;
};
// f(given), with batches.
template <class F>
auto with_batches(const GivenGradients& given, F f) {
  return GradientsWithBatch::is_needed(given) ? f(GradientsWithBatch(given).given()) : f(given);
}

// Throws Error(unsupported) for what says that keys lie elsewhere, or that sequences share them.
void check_places_of_gradients(const AttentionOptions& opts);

// Places for tiles of a head of an entry of q or k: those that sequences may have (PlacedKeyTile).
std::int64_t query_places(const BackwardCall& call);
std::int64_t key_places(const BackwardCall& call);
// Tiles of all heads of keys, at most.
std::int64_t most_key_tiles(const BackwardCall& call);

// Likewise of rows of queries, of one head.
std::int64_t most_query_tiles(const BackwardCall& call);

// The list, and that of rows where the launch of gradients prepares these itself (generator::BackwardRowTiles) or dq
// has a launch of its own, in words, without memory; empty where there is none.
bool wants_row_tiles(const BackwardCall& call);
Tensor key_tile_list(const BackwardCall& call);
Tensor row_tile_list(const BackwardCall& call);
generator::BackwardRowTiles row_tiles(const BackwardCall& call);
// What makes them.
PlainLaunch make_key_tiles_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
PlainLaunch make_row_tiles_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
// What makes gradients 0, also where no sequence is.
PlainLaunch make_clear_dq_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
PlainLaunch make_clear_dk_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);
PlainLaunch make_clear_dv_launch(const BackwardCall& call, const Architecture& architecture, PlainKernels& kernels);

}  // namespace flashjit::runtime
