// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/case_pages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace flashjit::cli {
namespace {

constexpr std::int64_t kSparePages = 2;
constexpr std::int32_t kNoPages[] = {-1, std::numeric_limits<std::int32_t>::max(), 1 << 20};

}  // namespace

PageOrder::PageOrder(const Dims& shape, const HostTensor& lengths, std::int64_t page_size, std::uint64_t seed)
    : page_size_(page_size) {
  std::mt19937_64 random(seed);
  const std::int64_t batch = shape[0], entries = (shape[1] + page_size - 1) / page_size;
  page_of_.resize(static_cast<std::size_t>(batch * entries + kSparePages));
  std::iota(page_of_.begin(), page_of_.end(), 0);
  std::shuffle(page_of_.begin(), page_of_.end(), random);
  table_ = HostTensor(DType::i32, {batch, entries});
  for (std::int64_t i = 0; i < batch * entries; ++i) {
    const auto used = static_cast<std::int64_t>(load_element(lengths.data(), lengths.dtype(), i / entries));
    const bool is_needed = i % entries * page_size < used;
    static_cast<std::int32_t*>(table_.data())[i] =
        is_needed ? page_of_[static_cast<std::size_t>(i)] : kNoPages[random() % std::size(kNoPages)];
  }
}

HostTensor PageOrder::moved(const HostTensor& rows) const {
  Dims shape = rows.shape();
  const std::int64_t batch = shape[0], seqlen = shape[1], entries = table_.shape()[1];
  shape[0] = static_cast<std::int64_t>(page_of_.size()), shape[1] = page_size_;
  HostTensor pool(rows.dtype(), shape);
  for (std::size_t i = 0; i < pool.element_count(); ++i)
    store_element(pool.data(), pool.dtype(), static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  std::int64_t bytes = static_cast<std::int64_t>(size_of(rows.dtype()));
  for (int dim = 2; dim < shape.size(); ++dim) bytes *= shape[dim];
  for (std::int64_t row = 0; row < batch * seqlen; ++row) {
    const std::int64_t key = row % seqlen;
    const std::int64_t page = page_of_[static_cast<std::size_t>(row / seqlen * entries + key / page_size_)];
    std::memcpy(static_cast<char*>(pool.data()) + (page * page_size_ + key % page_size_) * bytes,
                static_cast<const char*>(rows.data()) + row * bytes, static_cast<std::size_t>(bytes));
  }
  return pool;
}

CasePages in_pages(const HostTensor& k, const HostTensor& v, const HostTensor& lengths, std::int64_t page_size,
                   std::uint64_t seed) {
  const PageOrder order(k.shape(), lengths, page_size, seed);
  return {order.moved(k), order.moved(v), order.table()};
}

}  // namespace flashjit::cli
