// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/launch_record.h"
#include "runtime/launch_table.h"

namespace {

using flashjit::LengthRange;
using flashjit::Problem;
using flashjit::Variant;
using flashjit::runtime::LaunchKey;
using flashjit::runtime::LaunchRecord;
using flashjit::runtime::LaunchTable;

LaunchKey key_of(int head_dim) {
  Problem problem;
  problem.head_dim = head_dim;
  return LaunchKey(0, problem, LengthRange::long_kv, nullptr);
}

}  // namespace

TEST_CASE("every field of a call's key tells calls apart") {
  const Problem problem;
  Problem causal = problem, f16 = problem, head_dim = problem, head_dim_v = problem;
  causal.causal = true;
  f16.dtype = flashjit::DType::f16;
  head_dim.head_dim = 64;
  head_dim_v.head_dim_v = 64;
  const Variant base;
  Variant changed[12];
  changed[0].block_q = 128;
  changed[1].block_kv = 128;
  changed[2].warps = 8;
  changed[3].k_stages = 2;
  changed[4].v_stages = 2;
  changed[5].ctas_per_sm = 2;
  changed[6].pipeline = flashjit::Pipeline::serial;
  changed[7].layout = flashjit::SmemLayout::linear;
  changed[8].ldmatrix = 2;
  changed[9].query = flashjit::QuerySource::registers;
  changed[10].rescale = flashjit::Rescale::always;
  changed[11].order = flashjit::TileOrder::longest_first;

  std::vector<LaunchKey> keys;
  for (const Problem& each : {problem, causal, f16, head_dim, head_dim_v}) {
    keys.emplace_back(0, each, LengthRange::long_kv, nullptr);
  }
  keys.emplace_back(1, problem, LengthRange::long_kv, nullptr);
  keys.emplace_back(0, problem, LengthRange::short_kv, nullptr);
  keys.emplace_back(0, problem, LengthRange::few_queries, nullptr);
  keys.emplace_back(0, problem, LengthRange::long_kv, &base);
  for (const Variant& variant : changed) keys.emplace_back(0, problem, LengthRange::long_kv, &variant);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < keys.size(); ++j) {
      CAPTURE(i);
      CAPTURE(j);
      CHECK((keys[i] == keys[j]) == (i == j));
    }
  }
}

TEST_CASE("a variant with absurd numbers never meets the key of a legal one") {
  const Variant legal;
  Variant absurd = legal;
  absurd.block_q += 1 << 16;
  Variant negative = legal;
  negative.warps -= 1 << 8;
  const LaunchKey key(0, {}, LengthRange::long_kv, &legal);
  CHECK_FALSE(key == LaunchKey(0, {}, LengthRange::long_kv, &absurd));
  CHECK_FALSE(key == LaunchKey(0, {}, LengthRange::long_kv, &negative));
}

TEST_CASE("the range of lengths does not matter to a call that names its variant") {
  const Variant variant;
  CHECK(LaunchKey(0, {}, LengthRange::long_kv, &variant) == LaunchKey(0, {}, LengthRange::few_queries, &variant));
}

TEST_CASE("the first record of a key stays") {
  LaunchTable table;
  const LaunchRecord first, second;
  CHECK(table.find(key_of(64)) == nullptr);
  table.insert(key_of(64), first);
  table.insert(key_of(64), second);
  CHECK(table.find(key_of(64)) == &first);
  CHECK(table.find(key_of(72)) == nullptr);
}

TEST_CASE("readers find every published record while the table grows") {
  constexpr int kRecords = 2000;
  LaunchTable table;
  std::vector<LaunchRecord> records(kRecords);
  std::atomic<int> published{0};
  std::atomic<int> lost{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      for (int seen = 0; seen < kRecords;) {
        seen = published.load(std::memory_order_acquire);
        for (int i = 0; i < seen; ++i) {
          if (table.find(key_of(i)) != &records[static_cast<std::size_t>(i)]) ++lost;
        }
      }
    });
  }
  for (int i = 0; i < kRecords; ++i) {
    table.insert(key_of(i), records[static_cast<std::size_t>(i)]);
    published.store(i + 1, std::memory_order_release);
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(lost == 0);
}
