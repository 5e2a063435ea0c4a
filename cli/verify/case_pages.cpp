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

std::int64_t bytes_of_row(const HostTensor& rows) {
  return rows.shape()[2] * rows.shape()[3] * static_cast<std::int64_t>(size_of(rows.dtype()));
}

HostTensor moved(const HostTensor& rows, std::int64_t page_size, std::int64_t pages,
                 const std::vector<std::int32_t>& page_of) {
  const Dims& shape = rows.shape();
  HostTensor pool(rows.dtype(), {pages, page_size, shape[2], shape[3]});
  for (std::size_t i = 0; i < pool.element_count(); ++i)
    store_element(pool.data(), pool.dtype(), static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  const std::int64_t entries = (shape[1] + page_size - 1) / page_size, bytes = bytes_of_row(rows);
  for (std::int64_t row = 0; row < shape[0] * shape[1]; ++row) {
    const std::int64_t key = row % shape[1];
    const std::int64_t page = page_of[static_cast<std::size_t>(row / shape[1] * entries + key / page_size)];
    std::memcpy(static_cast<char*>(pool.data()) + (page * page_size + key % page_size) * bytes,
                static_cast<const char*>(rows.data()) + row * bytes, static_cast<std::size_t>(bytes));
  }
  return pool;
}

}  // namespace

CasePages in_pages(const HostTensor& k, const HostTensor& v, const HostTensor& lengths, std::int64_t page_size,
                   std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::int64_t batch = k.shape()[0], entries = (k.shape()[1] + page_size - 1) / page_size;
  std::vector<std::int32_t> page_of(static_cast<std::size_t>(batch * entries + kSparePages));
  std::iota(page_of.begin(), page_of.end(), 0);
  std::shuffle(page_of.begin(), page_of.end(), random);
  HostTensor table(DType::i32, {batch, entries});
  for (std::int64_t i = 0; i < batch * entries; ++i) {
    const auto used = static_cast<std::int64_t>(load_element(lengths.data(), lengths.dtype(), i / entries));
    const bool is_needed = i % entries * page_size < used;
    static_cast<std::int32_t*>(table.data())[i] =
        is_needed ? page_of[static_cast<std::size_t>(i)] : kNoPages[random() % std::size(kNoPages)];
  }
  const auto pages = static_cast<std::int64_t>(page_of.size());
  return {moved(k, page_size, pages, page_of), moved(v, page_size, pages, page_of), std::move(table)};
}

}  // namespace flashjit::cli
