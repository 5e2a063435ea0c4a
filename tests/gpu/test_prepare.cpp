// SPDX-License-Identifier: Apache-2.0
// Preparing problems, and what the driver does with what the cache holds.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "cache/entry.h"
#include "tests/gpu/attention_case.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using tests::AttentionCase;

EngineOptions options_in(const tests::TemporaryDirectory& directory) {
  EngineOptions options = EngineOptions::from_environment();
  options.policy = Policy::compile;
  options.cache_directory = directory.path().string();
  options.log = nullptr;
  return options;
}

const Problem kProblem{DType::bf16, 64, 64, false};

}  // namespace

TEST_CASE("after prepare calls of every length compile, read and load nothing") {
  const tests::TemporaryDirectory directory;
  EngineOptions options = options_in(directory);
  std::mutex mutex;
  std::vector<Progress> told;
  options.progress = [&](const Progress& progress) {
    const std::lock_guard lock(mutex);
    told.push_back(progress);
  };
  Engine engine(options);
  const std::vector<KernelInfo> infos = engine.prepare(kProblem, 0);
  REQUIRE_FALSE(infos.empty());
  REQUIRE(infos.size() <= shape_buckets().size());
  CHECK(told.size() == 2 * infos.size());
  for (const Progress& progress : told) CHECK(progress.total == static_cast<int>(infos.size()));
  for (const KernelInfo& info : infos) {
    CHECK(info.origin == KernelInfo::Origin::compiled);
    CHECK(info.spill_bytes == 0);
    CHECK(std::filesystem::exists(info.cache_file));
  }
  const Counters before = engine.counters();
  const bool splits = std::any_of(infos.begin(), infos.end(), [](const KernelInfo& info) {
    return std::visit([](const auto& of_family) { return of_family.split_kv; }, info.variant);
  });
  CHECK(before.compiles == infos.size() + splits);  // and the kernel that joins what splits give
  for (const std::int64_t seqlen_kv : {0, 100, 1100, 2100, 8200}) {
    for (const std::int64_t seqlen_q : {5, 70}) {
      const AttentionCase c({1, seqlen_q, seqlen_kv, 1, 1, 64, 64});
      c.check_out(engine.attention(c.q, c.k, c.v));
    }
  }
  const Counters after = engine.counters();
  CHECK(after.compiles == before.compiles);
  CHECK(after.user_hits == before.user_hits);
  CHECK(after.memory_hits == before.memory_hits);
  CHECK(after.misses == before.misses);
}

TEST_CASE("what is prepared twice is made once") {
  const tests::TemporaryDirectory directory;
  Engine engine(options_in(directory));
  const std::size_t count = engine.prepare(kProblem, 0).size();
  const std::vector<KernelInfo> again = engine.prepare(kProblem);
  CHECK(again.size() == count);
  for (const KernelInfo& info : again) CHECK(info.origin == KernelInfo::Origin::memory);
  CHECK(engine.counters().compiles == count + 1);  // and what combines split keys
}

TEST_CASE("a given variant is prepared alone") {
  const tests::TemporaryDirectory directory;
  Engine engine(options_in(directory));
  const Variant variant = parse_variant("v3");
  const std::vector<KernelInfo> infos = engine.prepare(kProblem, 0, variant);
  REQUIRE(infos.size() == 1);
  CHECK(infos[0].variant == variant);
  const AttentionCase c;
  AttentionOptions opts;
  opts.variant = variant;
  c.check_out(engine.attention(c.q, c.k, c.v, opts));
  CHECK(engine.counters().compiles == 1);
}

TEST_CASE("a call is prepared without running it, and its kernel told") {
  const tests::TemporaryDirectory directory;
  Engine engine(options_in(directory));
  const AttentionCase c;
  const DeviceTensor out = c.poisoned_out();
  const KernelInfo info = engine.prepare(c.q, c.k, c.v, out);
  CHECK(info.problem == kProblem);
  CHECK(info.origin == KernelInfo::Origin::compiled);
  for (const double value : HostTensor::from_device(out).to_doubles()) CHECK(std::isnan(value));
  AttentionOptions opts;
  opts.variant = info.variant;
  engine.attention(c.q, c.k, c.v, out);
  engine.attention(c.q, c.k, c.v, out, opts);
  c.check_out(out);
  CHECK(engine.counters().compiles == 2);  // and what combines split keys
  CHECK(engine.prepare(c.q, c.k, c.v, out, opts).name == info.name);

  const AttentionCase empty({.batch = 0});
  CHECK_NOTHROW(engine.prepare(empty.q, empty.k, empty.v, empty.poisoned_out()));
  AttentionOptions wrong;
  wrong.variant = parse_variant("q48-kv64-w4");
  CHECK_THROWS_AS(engine.prepare(c.q, c.k, c.v, out, wrong), Error);
}

TEST_CASE("a filled cache is enough: no compile, and no NVRTC either") {
  const tests::TemporaryDirectory directory;
  Engine filler(options_in(directory));
  filler.prepare(kProblem, 0);
  EngineOptions options = options_in(directory);
  options.nvrtc_path = "/nowhere/libnvrtc.so";
  options.policy = Policy::cache_only;
  Engine engine(options);
  const AttentionCase c;
  c.check_out(engine.attention(c.q, c.k, c.v));
  CHECK(engine.counters().user_hits == 2);  // and what combines split keys
  CHECK(engine.counters().compiles == 0);
}

TEST_CASE("an intact entry that the driver refuses is compiled anew and replaced") {
  const tests::TemporaryDirectory directory;
  const AttentionCase c;
  std::string file;
  {
    Engine filler(options_in(directory));
    filler.attention(c.q, c.k, c.v);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
      if (entry.path().extension() == ".fjc") file = entry.path().string();
    }
  }
  std::ifstream in(file, std::ios::binary);
  auto entry = cache::decode(std::string(std::istreambuf_iterator<char>(in), {}));
  REQUIRE(entry.has_value());
  entry->payload.assign(entry->payload.size(), '\0');
  std::ofstream(file, std::ios::binary | std::ios::trunc) << cache::encode(*entry);

  Engine engine(options_in(directory));
  c.check_out(engine.attention(c.q, c.k, c.v));
  CHECK(engine.counters().user_hits == 2);  // and what combines split keys
  CHECK(engine.counters().quarantined == 1);
  CHECK(engine.counters().compiles == 1);
  Engine next(options_in(directory));
  c.check_out(next.attention(c.q, c.k, c.v));
  CHECK(next.counters().compiles == 0);
}
