// SPDX-License-Identifier: Apache-2.0
// Tuning records in a cache: which paths they may have, and what becomes of them when it is listed, tidied and shipped.
#include <doctest/doctest.h>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/bundle_layer.h"
#include "cache/directory_layer.h"
#include "cache/record_path.h"
#include "flashjit/cache.h"
#include "flashjit/error.h"
#include "generator/variant_space.h"
#include "tests/support/cache_entries.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/fake_kernels.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

using namespace flashjit;
using namespace flashjit::tests;
using cache::parse_record_path;
using cache::UserDirectoryLayer;
namespace fs = std::filesystem;

namespace {

EngineOptions options_in(const fs::path& directory) {
  EngineOptions options;
  options.cache_directory = directory.string();
  return options;
}

TuningRecord make_a100_record() {
  return make_record({"NVIDIA A100-SXM4-80GB", "sm_80", 108, 79, 40, 1410, 1593, 5120});
}

fs::path store(const fs::path& directory, const TuningRecord& record) {
  const auto file = UserDirectoryLayer(directory).store_record(tests::path_of(record), to_json(record));
  REQUIRE(file);
  return *file;
}

// A bundle with two records, and a directory that has an entry as well.
struct Shipped {
  TemporaryDirectory directory;
  fs::path bundle = directory / "kernels.fjb";
  Shipped() {
    make_fake_kernels(options_in(directory / "cache"), {{64, "sm_80"}});
    store(directory / "cache", make_record());
    store(directory / "cache", make_a100_record());
    write_bytes(bundle, Cache(options_in(directory / "cache")).export_bundle());
  }
  Cache elsewhere() const { return Cache(options_in(directory / "elsewhere")); }
};

}  // namespace

TEST_CASE("a record's path is tuning/<device>/<problem>.<bucket>.json and nothing else") {
  const std::string file = "a.q1-kv1-w1.json";
  const auto path = parse_record_path("tuning/nvidia-h200_1.5/" + file);
  REQUIRE(path);
  CHECK(path->device == "nvidia-h200_1.5");
  CHECK(path->file == file);
  CHECK(to_string(*path) == "tuning/nvidia-h200_1.5/" + file);
  const std::string long_part(201, 'a');
  for (const std::string& wrong :
       {"tuning/" + file, "tuning//" + file, "tuning/../" + file, "tuning/./" + file, "tuning/d/../" + file,
        "tuning/d/e/" + file, "/tuning/d/" + file, "other/d/" + file, "tuning/d/." + file, "tuning/D/" + file,
        "tuning/d/a b" + file, "tuning/d/a" + std::string(1, '\0') + file, "tuning/" + long_part + '/' + file,
        "tuning/d/" + long_part + file, file, std::string("tuning"), std::string()}) {
    CHECK_MESSAGE(!parse_record_path(wrong), wrong);
  }
  for (const char* wrong : {"run1.json", "a.b.json", ".json", "a.json", ".q1-kv1-w1.json", "a.q1-kv1-w.json",
                            "a.q1-w1-kv1.json", "a.q-kv1-w1.json", "q1-kv1-w1.json", "a.q1-kv1-w1.jsn"}) {
    CHECK_MESSAGE(!parse_record_path(std::string("tuning/d/") + wrong), wrong);
  }
}

TEST_CASE("other paths are neither read nor written") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory / "cache");
  CHECK_FALSE(layer.store_record("tuning/../secret.json", "{}"));
  CHECK_FALSE(layer.store_record("totals.json", "{}"));
  CHECK_FALSE(layer.store_record("tuning/d/a.q1-kv1-w1.json", std::string(cache::kMaxRecordBytes + 1, ' ')));
  CHECK_FALSE(fs::exists(directory / "cache"));
  write_bytes(directory / "secret.json", "{}");
  CHECK_FALSE(layer.read_record("tuning/../../secret.json").bytes);
}

TEST_CASE("a record is stored whole or not at all, whichever system call fails") {
  for (int failing = 0;; ++failing) {
    REQUIRE(failing < 1000);
    const TemporaryDirectory directory;
    store(directory / "cache", make_record());
    FailingFileSystem files;
    files.fail_at(failing, EIO);
    const TuningRecord newer = make_record(make_h200(), 7);
    const auto stored =
        UserDirectoryLayer(directory / "cache", {}, files).store_record(tests::path_of(newer), to_json(newer));
    const auto found = UserDirectoryLayer(directory / "cache").read_record(tests::path_of(newer));
    REQUIRE(found.bytes);
    if (stored) {
      CHECK(*found.bytes == to_json(newer));
    } else {
      CHECK((*found.bytes == to_json(make_record()) || *found.bytes == to_json(newer)));
    }
    if (files.calls() <= failing) break;
  }
}

TEST_CASE("an export of what is chosen leaves out what a tuning only tried") {
  const TemporaryDirectory directory;
  const EngineOptions options = options_in(directory / "cache");
  const FakeKernel by_default{128, "sm_80"}, by_record{128, "sm_80", false, to_string(make_a100_record().chosen)};
  const FakeKernel elsewhere{64, "sm_80", false, by_record.variant}, tried{128, "sm_80", false, "mma-q64-kv32-w4"};
  const FakeKernel without_tma{128, "sm_90a", false,
                               to_string(generator::default_without_tma({}, find_architecture("sm_90a")))};
  make_fake_kernels(options, {by_default, by_record, elsewhere, tried, without_tma});
  const Cache cache(options);
  const BundleContent only_chosen{{}, true};
  CHECK(cache.export_bundle(only_chosen) == make_fake_kernels({}, {by_default, without_tma}));

  store(directory / "cache", make_a100_record());
  const fs::path bundle = directory / "chosen.fjb";
  write_bytes(bundle, cache.export_bundle(only_chosen));
  const CacheVerification chosen = Cache::verify_bundle(bundle);
  CHECK(chosen.intact == 3);
  CHECK(chosen.records == 1);
  TuningRecord shipped_record = make_a100_record();
  shipped_record.candidates.clear();
  CHECK(cache::BundleLayer(bundle).read_record(tests::path_of(shipped_record)).bytes == to_json(shipped_record));
  EngineOptions shipped = options_in(directory / "elsewhere");
  shipped.bundles = {bundle.string()};
  for (const CacheEntry& entry : Cache(shipped).entries()) CHECK(entry.facts.at("variant") != tried.variant);
  write_bytes(bundle, cache.export_bundle());
  CHECK(Cache::verify_bundle(bundle).intact == 5);
}

TEST_CASE("an export of what is chosen leaves out kernels of what stands for users' texts") {
  const TemporaryDirectory directory;
  const EngineOptions options = options_in(directory / "cache");
  Problem problem;
  problem.score = Score("score / 2").source();
  const FakeKernel plain{128, "sm_80"}, stands_for_texts{128, "sm_80", false, {}, tuning_class(problem).score};
  make_fake_kernels(options, {plain, stands_for_texts});
  CHECK(Cache(options).export_bundle({{}, true}) == make_fake_kernels({}, {plain}));
}

TEST_CASE("records of all layers are listed by path") {
  Shipped shipped;
  EngineOptions options = options_in(shipped.directory / "cache");
  options.bundles = {shipped.bundle.string()};
  const std::vector<CacheRecord> records = Cache(options).records();
  REQUIRE(records.size() == 4);
  CHECK(records[0].path == tests::path_of(make_a100_record()));
  CHECK(records[1].path == tests::path_of(make_record()));
  CHECK(records[1].layer == CacheLayer::user);
  CHECK(records[1].location == (shipped.directory / "cache" / records[1].path).string());
  CHECK(records[1].bytes == to_json(make_record()).size());
  CHECK(records[3].layer == CacheLayer::bundle);
  CHECK(records[3].location == shipped.bundle.string() + ':' + records[1].path);
  CHECK(Cache(options).entries().size() == 2);
}

TEST_CASE("a bundle carries records, and importing it stores them") {
  Shipped shipped;
  const CacheVerification written = Cache::verify_bundle(shipped.bundle.string());
  CHECK(written.ok());
  CHECK(written.intact == 1);
  CHECK(written.records == 2);
  const CacheImport first = shipped.elsewhere().import_bundle(shipped.bundle.string());
  CHECK(first.imported == 1);
  CHECK(first.records == 2);
  CHECK(first.records_present == 0);
  CHECK(read_bytes(shipped.directory / "elsewhere" / tests::path_of(make_record())) == to_json(make_record()));
  const CacheImport second = shipped.elsewhere().import_bundle(shipped.bundle.string());
  CHECK(second.records == 0);
  CHECK(second.records_present == 2);
  CHECK(shipped.elsewhere().export_bundle() == read_bytes(shipped.bundle));
}

TEST_CASE("importing leaves the user's own record, but for a damaged one") {
  Shipped shipped;
  const TuningRecord own = make_record(make_h200(), 7);
  const fs::path kept = store(shipped.directory / "elsewhere", own);
  const fs::path damaged = store(shipped.directory / "elsewhere", make_a100_record());
  write_bytes(damaged, "{");
  const CacheImport result = shipped.elsewhere().import_bundle(shipped.bundle.string());
  CHECK(result.records == 1);
  CHECK(result.records_present == 1);
  CHECK(read_bytes(kept) == to_json(own));
  CHECK(read_bytes(damaged) == to_json(make_a100_record()));
}

TEST_CASE("only the wanted architectures' records are exported") {
  Shipped shipped;
  const fs::path hopper = shipped.directory / "hopper.fjb";
  write_bytes(hopper, Cache(options_in(shipped.directory / "cache")).export_bundle({{"sm_90a"}}));
  const CacheVerification verified = Cache::verify_bundle(hopper.string());
  CHECK(verified.intact == 0);
  CHECK(verified.records == 1);
}

TEST_CASE("damaged records are told of, neither exported nor imported, and set aside when asked") {
  Shipped shipped;
  const Cache cache(options_in(shipped.directory / "cache"));
  const fs::path file = shipped.directory / "cache" / tests::path_of(make_record());
  SUBCASE("half") { write_bytes(file, to_json(make_record()).substr(0, 100)); }
  SUBCASE("another's") { write_bytes(file, to_json(make_a100_record())); }
  const CacheVerification verified = cache.verify();
  CHECK(verified.records == 1);
  REQUIRE(verified.damaged.size() == 1);
  CHECK(verified.damaged[0].name == tests::path_of(make_record()));
  CHECK(verified.damaged[0].location == file.string());
  write_bytes(shipped.bundle, cache.export_bundle());
  CHECK(Cache::verify_bundle(shipped.bundle.string()).records == 1);
  write_bytes(shipped.bundle, cache::encode_bundle({{tests::path_of(make_record()), read_bytes(file)}}));
  CHECK(shipped.elsewhere().import_bundle(shipped.bundle.string()).damaged.size() == 1);
  CHECK_FALSE(fs::exists(shipped.directory / "elsewhere" / "tuning"));
  cache.verify(true);
  CHECK_FALSE(fs::exists(file));
  CHECK(fs::exists(file.string() + ".bad"));
  CHECK(cache.verify().ok());
}

TEST_CASE("a later release's record is in order, though this one cannot use it") {
  Shipped shipped;
  const fs::path file = shipped.directory / "cache" / tests::path_of(make_record());
  std::string text = to_json(make_record());
  write_bytes(file, text.replace(text.find("\"format\": 1"), 11, "\"format\": 2"));
  const Cache cache(options_in(shipped.directory / "cache"));
  CHECK(cache.verify(true).records == 2);
  CHECK(fs::exists(file));
}

TEST_CASE("gc leaves records and takes what was set aside; clear takes all") {
  Shipped shipped;
  const fs::path cache = shipped.directory / "cache", folder = fs::path(tests::path_of(make_record())).parent_path();
  write_bytes(cache / folder / "old.q1-kv1-w1.json.bad", "{");
  write_bytes(cache / folder / "notes.txt", "mine");
  UserDirectoryLayer layer(cache);
  const cache::Collected collected = layer.collect(0, false);
  CHECK(collected.removed.size() == 2);
  CHECK(layer.list_records().size() == 2);
  CHECK(layer.list().empty());
  CHECK_FALSE(fs::exists(cache / folder / "old.q1-kv1-w1.json.bad"));
  layer.clear(false);
  CHECK(layer.list_records().empty());
  CHECK(read_bytes(cache / folder / "notes.txt") == "mine");
  fs::remove(cache / folder / "notes.txt");
  layer.clear(false);
  CHECK_FALSE(fs::exists(cache / "tuning"));
}

TEST_CASE("clear does not follow links out of the directory") {
  const TemporaryDirectory directory, elsewhere;
  fs::create_directories(directory / "cache" / "tuning");
  fs::permissions(directory / "cache", fs::perms::owner_all);
  fs::permissions(directory / "cache" / "tuning", fs::perms::owner_all);
  write_bytes(elsewhere / "a.q1-kv1-w1.json", "{}");
  fs::create_directory_symlink(elsewhere.path(), directory / "cache" / "tuning" / "device");
  UserDirectoryLayer layer(directory / "cache");
  CHECK(layer.list_records().empty());
  CHECK_FALSE(layer.read_record("tuning/device/a.q1-kv1-w1.json").bytes);
  layer.clear(false);
  CHECK(read_bytes(elsewhere / "a.q1-kv1-w1.json") == "{}");
}
