// SPDX-License-Identifier: Apache-2.0
// Dropout of probabilities (Srivastava et al. 2014), as models are trained with it.
#pragma once

#include <cstdint>

namespace flashjit {

// After its softmax each probability becomes 0 with this probability, and the output is divided by the share that is
// kept, so that it is right in the mean; the LSE is as without. Which ones is a matter of seed, offset, batch entry,
// query head, query and key alone: it is the same in every kernel, for every cut into tiles, and can be had again
// without any memory of it. A caller takes another offset, or another seed, for each call that shall drop others.
//
// The random number of key j for query i of head h and batch entry b is one of the eight of 16 bits in a block of
// Philox4x32 with seven rounds (Salmon et al. 2011), whose counter and key are, as words of 32 bits:
//   counter  i, j with its bits 0, 3 and 4 cleared, b * num_heads_q + h, the lower half of offset
//   key      the lower half of seed, the upper half of seed XOR the upper half of offset
// It is half j % 2, the lower one first, of word j / 8 % 4. Read as an f16 it is below a threshold, or not a number,
// for what is kept, and for probabilities above 1/2 the other way round: see dropout_threshold().
// Of one seed all offsets choose others; offsets from 2^32 on choose what another seed would have chosen.
struct Dropout {
  double probability =
      0;  // from 0, for none, to below 1; the nearest multiple of 2^-16 that there is, see kept_share()
  std::uint64_t seed = 0, offset = 0;

  friend bool operator==(const Dropout& a, const Dropout& b) noexcept {
    return a.probability == b.probability && a.seed == b.seed && a.offset == b.offset;
  }
};

// What random numbers are compared with.
struct DropoutThreshold {
  std::uint16_t bits;  // of an f16
  bool keeps_below;    // what is below it or not a number is kept; else what is not
};
// Of 2^16 random numbers it drops as many as come nearest to the probability: within 2^-16 of it, and never all.
// Throws Error(invalid_argument) for a probability outside of [0, 1).
DropoutThreshold dropout_threshold(double probability);
// The share of probabilities that are kept, by which the output is divided: exact. Throws like dropout_threshold.
double kept_share(double probability);

// Whether a call with this dropout keeps the probability of a key. num_heads_q: of the call's q. Throws like
// dropout_threshold.
bool keeps(const Dropout& dropout, std::int64_t num_heads_q, std::int64_t batch, std::int64_t head, std::int64_t query,
           std::int64_t key);

}  // namespace flashjit
