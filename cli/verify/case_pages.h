// SPDX-License-Identifier: Apache-2.0
// Keys and values of a case in pages.
#pragma once

#include <flashjit/tensor.h>

#include <cstdint>
#include <vector>

namespace flashjit::cli {

// Pages of this size in any order, for rows of a [batch, seqlen, ...] shape. lengths: of their keys, i32 [batch]. There
// are pages that no sequence has, and numbers of no page behind the entries that its keys need.
class PageOrder {
 public:
  PageOrder(const Dims& shape, const HostTensor& lengths, std::int64_t page_size, std::uint64_t seed);

  // The rows of [batch, seqlen, ...] as [pages, page_size, ...], and NaN where there are none.
  HostTensor moved(const HostTensor& rows) const;
  const HostTensor& table() const noexcept { return table_; }  // i32 [batch, entries]

 private:
  std::int64_t page_size_;
  std::vector<std::int32_t> page_of_;  // of entries that are there
  HostTensor table_;
};

struct CasePages {
  HostTensor k, v;   // [pages, page_size, heads, head_dim]
  HostTensor table;  // i32 [batch, entries]
};
// Keys and values in such pages.
CasePages in_pages(const HostTensor& k, const HostTensor& v, const HostTensor& lengths, std::int64_t page_size,
                   std::uint64_t seed);

}  // namespace flashjit::cli
