// SPDX-License-Identifier: Apache-2.0
// Keys and values of a case in pages.
#pragma once

#include <flashjit/tensor.h>

#include <cstdint>

namespace flashjit::cli {

struct CasePages {
  HostTensor k, v;   // [pages, page_size, heads, head_dim]
  HostTensor table;  // i32 [batch, entries]
};

// The rows of [batch, seqlen, heads, head_dim] tensors in pages of this size and in any order, with NaN in pages that
// no sequence has, and numbers of no page behind the entries that its keys need. lengths: of these, i32 [batch].
CasePages in_pages(const HostTensor& k, const HostTensor& v, const HostTensor& lengths, std::int64_t page_size,
                   std::uint64_t seed);

}  // namespace flashjit::cli
