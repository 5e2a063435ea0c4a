// SPDX-License-Identifier: Apache-2.0
// Sequences whose keys are in few pages all over a large pool, and beside each other for the reference, which so knows
// nothing of pages.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "flashjit/flashjit.h"

namespace flashjit::tests {

class ScatteredPages {
 public:
  static constexpr std::int64_t kEntries = 40'000;  // of a row of the table, of which a sequence needs its first ones

  // pool: [pages, page_size, num_heads_kv, head_dim], of k and of v.
  ScatteredPages(const Dims& pool, std::vector<std::int64_t> lengths)
      : pool_(pool),
        lengths_(std::move(lengths)),
        q_(normal(kQueries, 2 * pool[2], 1)),
        k_(normal(longest(), pool[2], 2)),
        v_(normal(longest(), pool[2], 3)),
        table_(DType::i32, {batch(), kEntries}),
        used_(DType::i32, {batch()}),
        first_pages_(DType::i32, {batch()}) {
    std::fill_n(ints_of(table_), batch() * kEntries, -1);
    std::int64_t count = 0;
    for (std::int64_t sequence = 0; sequence < batch(); ++sequence) {
      std::int32_t* const row = ints_of(table_) + sequence * kEntries;
      for (std::int64_t entry = 0; entry * page_size() < lengths_[sequence]; ++entry) row[entry] = page(count++);
      ints_of(used_)[sequence] = static_cast<std::int32_t>(lengths_[sequence]);
      ints_of(first_pages_)[sequence] = row[0];
    }
  }

  const HostTensor& q() const { return q_; }
  const HostTensor& table() const { return table_; }
  const HostTensor& used() const { return used_; }                // keys of each sequence
  const HostTensor& first_pages() const { return first_pages_; }  // of each sequence
  std::size_t pool_bytes() const { return static_cast<std::size_t>(pool_[0] * page_size()) * row_bytes(); }

  // put(place in the pool, rows, bytes) for every page of k, or of v.
  template <typename Put>
  void put_keys(const Put& put) const {
    put_pages(k_, put);
  }
  template <typename Put>
  void put_values(const Put& put) const {
    put_pages(v_, put);
  }

  void check(const HostTensor& out) const {
    AttentionOptions options;
    options.causal = true;
    options.seqused_kv = used_.view();
    const reference::Result exact = reference::attention(q_.view(), k_.view(), v_.view(), options);
    const reference::Result low = reference::attention_in_low_precision(q_.view(), k_.view(), v_.view(), options);
    const reference::Comparison comparison = reference::compare(out, exact, low);
    CAPTURE(comparison.max_error);
    CHECK(comparison.passed);
  }

 private:
  static constexpr std::int64_t kQueries = 3;
  static constexpr std::int64_t kStep = 12'347;  // a prime that divides no number of pages here

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t page_size() const { return pool_[1]; }
  std::int64_t longest() const { return *std::max_element(lengths_.begin(), lengths_.end()); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(pool_[2] * pool_[3]) * size_of(DType::bf16); }
  // Another one for each number: the last one, and from there on through the whole pool.
  std::int32_t page(std::int64_t number) const {
    return static_cast<std::int32_t>(pool_[0] - 1 - number * kStep % pool_[0]);
  }
  static std::int32_t* ints_of(HostTensor& tensor) { return static_cast<std::int32_t*>(tensor.data()); }
  HostTensor normal(std::int64_t rows, std::int64_t heads, std::uint64_t seed) const {
    return HostTensor::random_normal(DType::bf16, {batch(), rows, heads, pool_[3]}, seed);
  }

  template <typename Put>
  void put_pages(const HostTensor& tensor, const Put& put) const {
    const auto* const rows = static_cast<const char*>(tensor.data());
    const std::size_t page_bytes = static_cast<std::size_t>(page_size()) * row_bytes();
    for (std::int64_t sequence = 0; sequence < batch(); ++sequence)
      for (std::int64_t first = 0; first < lengths_[sequence]; first += page_size()) {
        const std::int64_t count = std::min(page_size(), lengths_[sequence] - first);
        const auto* const table = static_cast<const std::int32_t*>(table_.data());
        const auto number = static_cast<std::size_t>(table[sequence * kEntries + first / page_size()]);
        put(number * page_bytes, rows + static_cast<std::size_t>(sequence * longest() + first) * row_bytes(),
            static_cast<std::size_t>(count) * row_bytes());
      }
  }

  Dims pool_;
  std::vector<std::int64_t> lengths_;
  HostTensor q_, k_, v_, table_, used_, first_pages_;
};

}  // namespace flashjit::tests
