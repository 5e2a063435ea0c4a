// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <thread>
#include <unordered_set>
#include <vector>

#include "generator/features.h"
#include "runtime/backends/launch_record.h"
#include "runtime/backends/launch_table.h"
#include "tests/support/feature.h"

namespace {

using flashjit::Problem;
using flashjit::ShapeBucket;
using flashjit::Variant;
using flashjit::generator::FunctionKind;
using flashjit::runtime::LaunchKey;
using flashjit::runtime::LaunchRecord;
using flashjit::runtime::LaunchTable;
using flashjit::runtime::WithoutTensorMaps;

// The table looks at no record; where one stands tells it from others.
LaunchRecord any_record() {
  return LaunchRecord({Problem{}, flashjit::parse_variant("mma-v1"), flashjit::find_architecture("sm_80")});
}

LaunchKey key_of(int head_dim) {
  Problem problem;
  problem.head_dim = head_dim;
  return LaunchKey(0, problem, ShapeBucket{});
}

// The problem with each set of features that usual head dims have.
std::vector<Problem> with_any_features(const Problem& problem) {
  std::vector<Problem> problems = {problem};
  for (const flashjit::generator::FeatureRow& row : flashjit::generator::features()) {
    if (flashjit::tests::is_of_large_heads(row)) continue;
    const std::vector<Problem> without = problems;
    for (Problem with : without) {
      const std::uint32_t before = flashjit::generator::feature_bits(with);
      flashjit::tests::ask(with, row);
      const std::uint32_t now = flashjit::generator::feature_bits(with);
      // One that brings another with it is there already, and so is one that takes another away.
      if ((before & ~now) == 0 && std::popcount(now ^ before) == 1) problems.push_back(with);
    }
  }
  return problems;
}

std::size_t count_different(const std::vector<LaunchKey>& keys) {
  const auto hash = [](const LaunchKey& key) { return key.hash(); };
  return std::unordered_set<LaunchKey, decltype(hash)>(keys.begin(), keys.end(), 2 * keys.size(), hash).size();
}

// The plain variant, and one that differs from it in each field.
std::vector<Variant> changed_mma_variants() {
  using namespace flashjit;
  std::vector<Variant> changed(1, MmaVariant{});
  const auto add = [&](auto field, auto value) {
    MmaVariant variant;
    REQUIRE(variant.*field != value);
    variant.*field = value;
    changed.push_back(variant);
  };
  add(&MmaVariant::block_q, 128);
  add(&MmaVariant::block_kv, 128);
  add(&MmaVariant::warps, 8);
  add(&MmaVariant::k_stages, 2);
  add(&MmaVariant::v_stages, 2);
  add(&MmaVariant::ctas_per_sm, 2);
  add(&MmaVariant::pipeline, Pipeline::serial);
  add(&MmaVariant::layout, SmemLayout::linear);
  add(&MmaVariant::ldmatrix, 2);
  add(&MmaVariant::query, QuerySource::registers);
  add(&MmaVariant::rescale, Rescale::always);
  add(&MmaVariant::order, TileOrder::longest_first);
  return changed;
}

std::vector<Variant> changed_hopper_variants() {
  using namespace flashjit;
  std::vector<Variant> changed(1, HopperVariant{});
  const auto add = [&](auto field, auto value) {
    HopperVariant variant;
    REQUIRE(variant.*field != value);
    variant.*field = value;
    changed.push_back(variant);
  };
  add(&HopperVariant::block_q, 64);
  add(&HopperVariant::block_kv, 64);
  add(&HopperVariant::stages, 3);
  add(&HopperVariant::q_stages, 2);
  add(&HopperVariant::output, OutputSlot::half);
  add(&HopperVariant::overlap, GemmSoftmax::serial);
  add(&HopperVariant::ping_pong, PingPong::off);
  add(&HopperVariant::warp_specialized, false);
  add(&HopperVariant::probabilities, ProbabilitySource::shared);
  add(&HopperVariant::cluster, 2);
  add(&HopperVariant::rescale, Rescale::lazy);
  add(&HopperVariant::scheduler, Scheduler::fixed);
  add(&HopperVariant::order, TileOrder::longest_first);
  add(&HopperVariant::boundary, TileBoundary::fused);
  return changed;
}

}  // namespace

TEST_CASE("every field of a call's key tells calls apart") {
  const Problem problem;
  Problem f16 = problem, head_dim = problem, head_dim_v = problem, k_rotary = problem;
  k_rotary.k_rotary = true;
  Problem latent = problem;
  latent.latent = true;
  f16.dtype = flashjit::DType::f16;
  head_dim.head_dim = 64;
  head_dim_v.head_dim_v = 64;
  std::vector<Problem> problems = with_any_features(problem);
  problems.insert(problems.end(), {f16, head_dim, head_dim_v, k_rotary, latent});

  std::vector<LaunchKey> keys;
  const std::vector<ShapeBucket> buckets = flashjit::shape_buckets();
  for (const Problem& each : problems) {
    // Of the many sets of more than two features one bucket each, so that keys fit memory.
    const bool is_small = std::popcount(flashjit::generator::feature_bits(each)) <= 2;
    for (std::size_t i = 0; i < (is_small ? buckets.size() : 1); ++i) keys.emplace_back(0, each, buckets[i]);
    keys.emplace_back(0, each, WithoutTensorMaps{});
    keys.emplace_back(0, each, Variant(flashjit::MmaVariant{}));
  }
  keys.emplace_back(1, problem, ShapeBucket{});
  keys.emplace_back(1, problem, WithoutTensorMaps{});
  const std::vector<Variant> mma = changed_mma_variants();
  for (std::size_t i = 1; i < mma.size(); ++i) keys.emplace_back(0, problem, mma[i]);
  for (const Variant& variant : changed_hopper_variants()) keys.emplace_back(0, problem, variant);
  CHECK(count_different(keys) == keys.size());
}

TEST_CASE("functions tell calls apart by their text, their kind and the types of their captures, and by nothing else") {
  using flashjit::DType, flashjit::Mask, flashjit::Score, flashjit::Tensor;
  std::vector<Problem> problems;
  const auto add_score = [&](const Score& score) { problems.emplace_back().score = score.source(); };
  const auto add_mask = [&](const Mask& mask) { problems.emplace_back().mask = mask.source(); };
  float numbers[8] = {};
  add_score(Score("score"));
  add_score(Score("score "));
  add_score(Score("score + at", {{"at", 1.0}}));
  add_score(Score("score + at", {{"at", 1}}));
  add_score(Score("score + at(0)", {{"at", Tensor(numbers, DType::f32, {8})}}));
  add_score(Score("score + at(0)", {{"at", Tensor(numbers, DType::f16, {8})}}));
  add_score(Score("score + at(0)", {{"at", Tensor(numbers, DType::f32, {4}, {2})}}));
  add_score(Score("score + at(0)", {{"at", Tensor(numbers, DType::f32, {2, 4})}}));
  add_mask(Mask("query < key"));
  add_mask(Mask("query < at", {{"at", 1}}));
  problems.push_back(problems.front());
  problems.back().mask = Mask("query < key").source();
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
    problems.emplace_back().bias = &flashjit::generator::library_function(FunctionKind::bias, dtype);
  std::vector<LaunchKey> keys;
  for (const Problem& problem : problems) keys.emplace_back(0, problem, ShapeBucket{});
  CHECK(count_different(keys) == keys.size());

  float others[8] = {};
  add_score(Score("score + at", {{"at", 2.0}}));
  add_score(Score("score + at", {{"at", 7}}));
  add_score(Score("score + at(0)", {{"at", Tensor(others, DType::f32, {5})}}));
  add_score(Score("score + at(0)", {{"at", Tensor(others, DType::f32, {4}, {3})}}));
  add_mask(Mask("query < at", {{"at", -5}}));
  const std::size_t different = keys.size();
  for (const Problem& problem : problems) keys.emplace_back(0, problem, ShapeBucket{});
  CHECK(count_different(keys) == different);
}

TEST_CASE("a variant with absurd numbers never meets the key of a legal one") {
  const auto key_of_variant = [](const Variant& variant) { return LaunchKey(0, {}, variant); };
  flashjit::MmaVariant mma;
  mma.block_q += 1 << 16;
  CHECK_FALSE(key_of_variant(mma) == key_of_variant(flashjit::MmaVariant{}));
  mma = {};
  mma.warps -= 1 << 8;
  CHECK_FALSE(key_of_variant(mma) == key_of_variant(flashjit::MmaVariant{}));
  flashjit::HopperVariant hopper;
  hopper.block_kv += 1 << 16;
  CHECK_FALSE(key_of_variant(hopper) == key_of_variant(flashjit::HopperVariant{}));
  hopper = {};
  hopper.cluster += 1 << 8;
  CHECK_FALSE(key_of_variant(hopper) == key_of_variant(flashjit::HopperVariant{}));
}

TEST_CASE("the first record of a key stays") {
  LaunchTable table;
  const LaunchRecord first = any_record(), second = any_record();
  CHECK(table.find(key_of(64)) == nullptr);
  CHECK(&table.insert(key_of(64), first) == &first);
  CHECK(&table.insert(key_of(64), second) == &first);
  CHECK(table.find(key_of(64)) == &first);
  CHECK(table.find(key_of(72)) == nullptr);
}

TEST_CASE("a record is replaced when that is asked for") {
  LaunchTable table;
  const std::vector<LaunchRecord> records(200, any_record());
  for (int i = 0; i < 100; ++i) table.insert(key_of(i), records[static_cast<std::size_t>(i)]);
  const LaunchRecord replaced = any_record(), added = any_record();
  table.replace(key_of(7), replaced);
  table.replace(key_of(1000), added);
  CHECK(table.find(key_of(7)) == &replaced);
  CHECK(table.find(key_of(1000)) == &added);
  for (int i = 100; i < 200; ++i) table.insert(key_of(i), records[static_cast<std::size_t>(i)]);
  for (int i = 0; i < 200; ++i) {
    if (i != 7) CHECK(table.find(key_of(i)) == &records[static_cast<std::size_t>(i)]);
  }
  CHECK(table.find(key_of(7)) == &replaced);
}

TEST_CASE("readers see the old record or the new one while it is replaced") {
  LaunchTable table;
  const LaunchRecord records[2] = {any_record(), any_record()};
  table.insert(key_of(64), records[0]);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    while (!done) {
      const LaunchRecord* found = table.find(key_of(64));
      if (found != &records[0] && found != &records[1]) ++wrong;
    }
  });
  for (int i = 0; i < 10'000; ++i) table.replace(key_of(64), records[i % 2]);
  done = true;
  reader.join();
  CHECK(wrong == 0);
  CHECK(table.find(key_of(64)) == &records[1]);
}

TEST_CASE("readers find every published record while the table grows") {
  constexpr int kRecords = 2000;
  LaunchTable table;
  const std::vector<LaunchRecord> records(kRecords, any_record());
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
