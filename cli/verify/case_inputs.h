// SPDX-License-Identifier: Apache-2.0
// Inputs for comparisons with the reference: scores that are hard on an online maximum, and the other memory layout.
#pragma once

#include <flashjit/reference.h>
#include <flashjit/tensor.h>

#include <cstdint>

namespace flashjit::cli {

inline constexpr double kOutlierRate = 0.01;  // of rows of random inputs

// How the scores of a row change with the key. Kernels visit the last keys first. All but random and equal are mirrored
// in odd rows, so that neighbouring rows of a warp never agree on what to do.
enum class Scores : std::uint8_t {
  random,
  ramp,          // rise steadily; in odd rows they fall
  jumps,         // by more than exp can bridge in f32, every 64 keys, up towards the first key
  spike_first,   // one key far above the others: the first, a middle or the last one
  spike_middle,  //
  spike_last,    //
  equal,         // all keys alike
  very_low,      // the second half far below zero, so that it does not count beside the first
  huge,          // two keys billions above and below the others, further than f32 tells neighbouring numbers apart
  infinite,      // one is infinite: even rows that see it are NaN
};
inline constexpr Scores kHardScores[] = {Scores::ramp,         Scores::jumps,      Scores::spike_first,
                                         Scores::spike_middle, Scores::spike_last, Scores::equal,
                                         Scores::very_low,     Scores::huge,       Scores::infinite};
const char* to_string(Scores scores) noexcept;
// Whether some are infinite, or so far from 0 that f32 does not tell neighbouring numbers apart.
inline bool is_far(Scores scores) { return scores == Scores::huge || scores == Scores::infinite; }
// Whether keys are no values: infinite, or as large as f16 has them.
inline bool has_far_keys(Scores scores) { return is_far(scores) || scores == Scores::very_low; }

// Gives random q and k, [batch, seqlen, heads, head_dim], such scores under the default scale.
void shape_scores(Scores scores, HostTensor& q, HostTensor& k);

// [batch, seqlen, heads, head_dim] values as [batch, heads, seqlen, head_dim], and back.
HostTensor swap_seqlen_and_heads(const HostTensor& tensor);
// A [batch, seqlen, heads, head_dim] view of [batch, heads, seqlen, head_dim] memory.
Tensor view_with_heads_first(const Tensor& memory);

// How the tensors of a case that have heads lie in memory.
struct CaseLayout {
  bool heads_first = false;  // [batch, heads, seqlen, head_dim]

  HostTensor in_memory(const HostTensor& packed) const;  // and back
  Tensor view(const DeviceTensor& memory) const;
};

HostTensor filled_with_nan(DType dtype, const Dims& shape);

// Where a result is NaN and exact is too, both become 0 and compare as equal. Any other NaN stays.
void clear_expected_nan(HostTensor& out, HostTensor& lse, reference::Result& exact);

}  // namespace flashjit::cli
