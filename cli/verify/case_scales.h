// SPDX-License-Identifier: Apache-2.0
// Keys and values of a case as a cache of 8 bits has them, and what calls of 8 bits have.
#pragma once

#include <flashjit/tensor.h>

#include <cstdint>
#include <vector>

#include "cli/io/option_tensors.h"

namespace flashjit::cli {

// Makes k and v what the problem has, and adds the scales that go with them: for each token and head, or else for each
// head, for all of them, or none, as the seed says. NaN stays, and becomes a scale of NaN where a token has nothing
// else.
void store_in_8_bits(const Problem& problem, HostTensor& k, HostTensor& v, std::uint64_t seed,
                     std::vector<OptionTensor>& tensors);

// Likewise of q, k and v: for each head of a batch entry, each head, all, or none. With block_scales of those that the
// seed says, one of them at least, for each block of rows.
void store_in_8_bits(const Problem& problem, HostTensor& q, HostTensor& k, HostTensor& v, std::uint64_t seed,
                     std::vector<OptionTensor>& tensors);

// Rows of so many elements that they begin at multiples of 16 bytes; behind their own they have NaN.
HostTensor with_whole_rows(const HostTensor& rows);

}  // namespace flashjit::cli
