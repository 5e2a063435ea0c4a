// SPDX-License-Identifier: Apache-2.0
// Where tuning records are found, which are refused, and how they are kept.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/bundle_layer.h"
#include "cache/record_path.h"
#include "generator/functions.h"
#include "runtime/tuning/tuning_records.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tuning_records.h"

using namespace flashjit;
using namespace flashjit::tests;
using runtime::TuningRecords;
namespace fs = std::filesystem;

namespace {

// The records of one engine. Layers are added before they are first asked for.
class Records {
 public:
  Records() = default;
  explicit Records(const fs::path& user) {
    options_.user = std::make_shared<cache::UserDirectoryLayer>(user);
    options_.layers.push_back({CacheLayer::user, options_.user});
  }
  Records& add_system(const fs::path& directory) {
    options_.layers.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(directory)});
    return *this;
  }
  Records& add_bundle(const fs::path& file) {
    options_.layers.push_back({CacheLayer::bundle, std::make_shared<cache::BundleLayer>(file)});
    return *this;
  }
  Records& add_builtin(std::string_view summary) {
    options_.builtin.push_back(summary);
    return *this;
  }

  TuningRecords& get() {
    if (!records_) records_ = std::make_unique<TuningRecords>(options_, log_);
    return *records_;
  }
  TuningRecords::Shared find(const TuningRecord& like) { return get().find(like.device, like.problem, like.bucket); }
  // The time by which tests tell records apart; 0 when there is none.
  double time_of(const TuningRecord& like) {
    const TuningRecords::Shared found = find(like);
    return found ? found->chosen_us : 0;
  }
  int warnings() const { return warnings_; }

 private:
  std::atomic<int> warnings_{0};
  runtime::Logger log_{[this](LogLevel level, const std::string&) { warnings_ += level == LogLevel::warning; }};
  runtime::TuningRecordsOptions options_;
  std::unique_ptr<TuningRecords> records_;
};

// Puts a text under a record's name.
fs::path put(const fs::path& directory, const TuningRecord& name, const std::string& text) {
  const fs::path file = directory / path_of(name);
  fs::create_directories(file.parent_path());
  for (const fs::path& made : {file.parent_path(), file.parent_path().parent_path()}) {
    fs::permissions(made, fs::perms::owner_all);  // whatever the umask
  }
  write_bytes(file, text);
  REQUIRE(::chmod(file.c_str(), 0600) == 0);
  return file;
}

fs::path put(const fs::path& directory, const TuningRecord& record) { return put(directory, record, to_json(record)); }

fs::path bad(const fs::path& file) { return file.string() + ".bad"; }

// What stands there counts as no record, with one warning however often it is asked for.
void check_refused(const fs::path& directory, const fs::path& file, bool set_aside) {
  Records records(directory);
  CHECK(records.find(make_record()) == nullptr);
  CHECK(records.find(make_record()) == nullptr);
  CHECK(records.warnings() == 1);
  CHECK(records.get().damaged() == 1);
  CHECK(fs::exists(fs::symlink_status(file)) == !set_aside);
  CHECK(fs::exists(fs::symlink_status(bad(file))) == set_aside);
}

}  // namespace

TEST_CASE("nothing is found where nothing is, and nothing is made") {
  const TemporaryDirectory directory;
  Records records(directory / "cache");
  CHECK(records.find(make_record()) == nullptr);
  CHECK(records.get().all(make_h200()).empty());
  CHECK_FALSE(fs::exists(directory / "cache"));
  CHECK(records.warnings() == 0);
}

TEST_CASE("a record that was kept is found by the next engine") {
  const TemporaryDirectory directory;
  Records first(directory / "cache"), second(directory / "cache");
  const std::string file = first.get().keep(make_record());
  CHECK(file == (directory / "cache" / path_of(make_record())).string());
  CHECK(first.time_of(make_record()) == 412.5);
  REQUIRE(second.find(make_record()));
  CHECK(to_json(*second.find(make_record())) == to_json(make_record()));
  CHECK(count_files(directory.path(), ".tmp") == 0);
}

TEST_CASE("layers are asked in their order, what is inside the library last") {
  const TemporaryDirectory user, system, other;
  write_bytes(other / "a.fjb", cache::encode_bundle({{path_of(make_record()), to_json(make_record(make_h200(), 3))}}));
  const std::string builtin = summarize({make_record(make_h200(), 4)});
  const auto all = [&] {
    auto records = std::make_unique<Records>(user.path());
    records->add_system(system.path()).add_bundle(other / "a.fjb").add_builtin(builtin);
    return records;
  };
  const fs::path in_user = put(user.path(), make_record(make_h200(), 1));
  const fs::path in_system = put(system.path(), make_record(make_h200(), 2));
  CHECK(all()->time_of(make_record()) == 1);
  fs::remove(in_user);
  CHECK(all()->time_of(make_record()) == 2);
  fs::remove(in_system);
  CHECK(all()->time_of(make_record()) == 3);
  fs::remove(other / "a.fjb");
  CHECK(all()->time_of(make_record()) == 4);
}

TEST_CASE("a choice does not change under an engine unless it is asked to look again") {
  const TemporaryDirectory directory;
  Records found(directory.path()), missed(directory.path());
  CHECK(missed.find(make_record()) == nullptr);
  const fs::path file = put(directory.path(), make_record());
  CHECK(found.time_of(make_record()) == 412.5);
  CHECK(missed.find(make_record()) == nullptr);
  put(directory.path(), make_record(make_h200(), 7));
  CHECK(found.time_of(make_record()) == 412.5);
  const TuningRecord like = make_record();
  CHECK(missed.get().find_again(like.device, like.problem, like.bucket)->chosen_us == 7);
  CHECK(missed.time_of(like) == 7);
  fs::remove(file);
  CHECK(missed.get().find_again(like.device, like.problem, like.bucket)->chosen_us == 7);
}

TEST_CASE("two products of one architecture keep a record each, and so does a slice") {
  const TemporaryDirectory directory;
  DeviceIdentity h100 = make_h200(), slice = make_h200();
  h100.name = "NVIDIA H100 80GB HBM3";
  h100.memory_gib = 80;
  slice.name = "NVIDIA H200 MIG 1g.18gb";
  slice.sm_count = 16;
  Records writer(directory.path());
  const std::vector<DeviceIdentity> devices = {make_h200(), h100, slice};
  for (std::size_t i = 0; i < 3; ++i) {
    writer.get().keep(make_record(devices[i], static_cast<double>(i) + 1));
  }
  Records reader(directory.path());
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(reader.time_of(make_record(devices[i])) == static_cast<double>(i) + 1);
    CHECK(reader.get().all(devices[i]).size() == 1);
  }
}

TEST_CASE("half of a record is set aside, and the next layer is asked") {
  const TemporaryDirectory user, system;
  const std::string text = to_json(make_record());
  const fs::path file = put(user.path(), make_record(), text.substr(0, text.size() / 2));
  put(system.path(), make_record(make_h200(), 2));
  Records records(user.path());
  CHECK(records.add_system(system.path()).time_of(make_record()) == 2);
  CHECK(records.warnings() == 1);
  CHECK(records.get().damaged() == 1);
  CHECK_FALSE(fs::exists(file));
  CHECK(read_bytes(bad(file)) == text.substr(0, text.size() / 2));
}

TEST_CASE("a record of another device, problem or bucket is set aside") {
  const TemporaryDirectory directory;
  TuningRecord other = make_record();
  SUBCASE("device") { other.device.memory_clock_mhz = 2619; }
  SUBCASE("problem") { other.problem.causal = true; }
  SUBCASE("bucket") { other.bucket.work = WorkRange::more; }
  check_refused(directory.path(), put(directory.path(), make_record(), to_json(other)), true);
}

TEST_CASE("what another release wrote counts as none and stays") {
  const TemporaryDirectory directory;
  std::string text = to_json(make_record());
  SUBCASE("a later format") { text.replace(text.find("\"format\": 1"), 11, "\"format\": 2"); }
  SUBCASE("a variant that nobody knows") { text.replace(text.find("hopper-"), 7, "hoppper-"); }
  SUBCASE("a variant that is not legal") {
    TuningRecord record = make_record();
    record.chosen = parse_variant("hopper-q256-kv256-s4-qs2");
    text = to_json(record);
  }
  check_refused(directory.path(), put(directory.path(), make_record(), text), false);
}

TEST_CASE("a variant of another architecture is not taken") {
  const TemporaryDirectory directory;
  DeviceIdentity a100 = {"NVIDIA A100-SXM4-80GB", "sm_80", 108, 79, 40, 1410, 1593, 5120};
  TuningRecord record = make_record(a100);
  record.chosen = make_record().chosen;
  put(directory.path(), record);
  Records records(directory.path());
  CHECK(records.find(record) == nullptr);
  CHECK(records.warnings() == 1);
}

TEST_CASE("what is no file of ours is not read") {
  const TemporaryDirectory directory, elsewhere;
  const fs::path file = put(directory.path(), make_record());
  SUBCASE("a symbolic link") {
    write_bytes(elsewhere / "record", to_json(make_record()));
    fs::remove(file);
    fs::create_symlink(elsewhere / "record", file);
  }
  SUBCASE("a file that others may write to") { REQUIRE(::chmod(file.c_str(), 0622) == 0); }
  SUBCASE("a directory") {
    fs::remove(file);
    fs::create_directory(file);
  }
  SUBCASE("a file that is too large") {
    write_bytes(file, to_json(make_record()) + std::string(cache::kMaxRecordBytes, ' '));
  }
  check_refused(directory.path(), file, true);
}

TEST_CASE("a folder that others may write to is as good as none") {
  const TemporaryDirectory directory;
  const fs::path file = put(directory.path(), make_record());
  REQUIRE(::chmod(file.parent_path().c_str(), 0777) == 0);
  CHECK(Records(directory.path()).find(make_record()) == nullptr);
  CHECK(fs::exists(file));
}

TEST_CASE("system directories and bundles are never changed") {
  const TemporaryDirectory system, other;
  const fs::path file = put(system.path(), make_record(), "{");
  const std::string bundle = cache::encode_bundle({{path_of(make_record()), "{"}});
  write_bytes(other / "a.fjb", bundle);
  Records records;
  records.add_system(system.path()).add_bundle(other / "a.fjb");
  CHECK(records.find(make_record()) == nullptr);
  CHECK(records.get().damaged() == 2);
  CHECK(read_bytes(file) == "{");
  CHECK(read_bytes(other / "a.fjb") == bundle);
}

TEST_CASE("a record that cannot be written is kept in memory, with one warning") {
  const TemporaryDirectory directory;
  write_bytes(directory / "file", "");
  Records records(directory / "file");
  CHECK(records.get().keep(make_record()).empty());
  DeviceIdentity other = make_h200();
  other.sm_count = 78;
  CHECK(records.get().keep(make_record(other, 2)).empty());
  CHECK(records.warnings() == 1);
  CHECK(records.time_of(make_record()) == 412.5);
  CHECK(records.time_of(make_record(other)) == 2);
}

TEST_CASE("without a directory records live in memory, and nobody is locked out") {
  Records records;
  CHECK(records.get().keep(make_record()).empty());
  CHECK(records.time_of(make_record()) == 412.5);
  CHECK(records.warnings() == 0);
  const TuningRecord like = make_record();
  CHECK_FALSE(records.get().lock(like.device, like.problem, like.bucket));
}

TEST_CASE("whoever tunes can lock others out of this record and no other") {
  const TemporaryDirectory directory;
  Records a(directory.path()), b(directory.path());
  const TuningRecord like = make_record();
  auto first = a.get().lock(like.device, like.problem, like.bucket);
  auto second = b.get().lock(like.device, like.problem, like.bucket);
  auto other = b.get().lock(like.device, like.problem, {});
  REQUIRE((first && second && other));
  CHECK(first->try_lock() == cache::EntryLock::State::held);
  CHECK(second->try_lock() == cache::EntryLock::State::busy);
  CHECK(other->try_lock() == cache::EntryLock::State::held);
  first.reset();
  CHECK(second->try_lock() == cache::EntryLock::State::held);
}

TEST_CASE("all of a device's records are listed, each once and as it would be found") {
  const TemporaryDirectory user, system;
  TuningRecord second = make_record(make_h200(), 2), third = make_record(make_h200(), 3);
  second.bucket = {};
  third.problem.causal = true;
  const std::string builtin = summarize({make_record(make_h200(), 9), third});
  put(user.path(), make_record(make_h200(), 1));
  put(system.path(), make_record(make_h200(), 8));
  put(system.path(), second);
  write_bytes((user.path() / path_of(make_record())).parent_path() / "notes.json", "{}");
  Records records(user.path());
  records.add_system(system.path()).add_builtin(builtin);
  std::vector<double> times;
  for (const auto& record : records.get().all(make_h200())) times.push_back(record->chosen_us);
  CHECK(times == std::vector<double>{3, 1, 2});  // -causal. comes before .
  CHECK(records.get().all({}).empty());
}

TEST_CASE("a record is listed whatever its problem's spelling has in it") {
  const TemporaryDirectory directory;
  TuningRecord record = make_record();
  record.problem.bias = &generator::library_function(generator::FunctionKind::bias, DType::f32);
  record.chosen = MmaVariant{};
  put(directory.path(), record);
  Records records(directory.path());
  REQUIRE(records.get().all(make_h200()).size() == 1);
  CHECK(records.get().all(make_h200()).front()->problem == record.problem);
}

TEST_CASE("what is chosen on all devices of an architecture is listed, each once") {
  const TemporaryDirectory user, system;
  const auto choosing = [](const char* variant, int sm_count, WorkRange work = WorkRange::up_to_2) {
    TuningRecord record = make_record();
    record.device.sm_count = sm_count;
    record.bucket.work = work;
    record.chosen = parse_variant(variant);
    return record;
  };
  TuningRecord other_problem = choosing("hopper-q128-kv64", 132, WorkRange::more);
  other_problem.problem.causal = true;
  put(user.path(), choosing("hopper-q128-kv96", 132));
  put(user.path(), choosing("hopper-q128-kv80", 114));
  put(user.path(), choosing("hopper-q128-kv96", 78));
  put(user.path(), choosing("hopper-q256-kv256", 66));  // needs more shared memory than there is
  put(user.path(), make_record({"NVIDIA A100-SXM4-80GB", "sm_80", 108, 79, 40, 1410, 1593, 5120}));
  put(user.path(), other_problem);
  put(system.path(), choosing("hopper-q128-kv48", 132));  // hidden by the user's
  const TuningRecord damaged = choosing("hopper-q64-kv32", 16);
  put(user.path(), damaged);
  write_bytes(user.path() / path_of(damaged), "{");
  const std::string builtin = summarize({choosing("hopper-q192-kv80", 132, WorkRange::up_to_1)});
  Records records(user.path());
  records.add_system(system.path()).add_builtin(builtin);
  std::vector<std::string> chosen;
  for (const Variant& variant : records.get().chosen({}, find_architecture("sm_90a")))
    chosen.push_back(to_string(variant));
  std::vector<std::string> expected = {to_string(parse_variant("hopper-q128-kv96")),
                                       to_string(parse_variant("hopper-q128-kv80")),
                                       to_string(parse_variant("hopper-q192-kv80"))};
  std::sort(chosen.begin(), chosen.end());
  std::sort(expected.begin(), expected.end());
  CHECK(chosen == expected);
  CHECK(records.get().chosen({DType::f16}, find_architecture("sm_90a")).empty());
}

TEST_CASE("where records are given there are no others, whatever layers have or get") {
  const TemporaryDirectory directory;
  TuningRecord kept = make_record(), other = make_record(), given = make_record(), foreign = make_record();
  other.bucket.work = given.bucket.work = WorkRange::up_to_1;
  given.chosen_us = 7;
  foreign.device.sm_count = 16;  // a slice
  put(directory / "cache", kept);
  const std::string builtin = summarize({kept});
  Records records(directory / "cache");
  records.add_builtin(builtin);
  CHECK(records.find(kept));
  CHECK_FALSE(records.get().uses_only_given(kept.device));
  records.get().use_only(kept.device, {given, foreign});
  CHECK(records.get().uses_only_given(kept.device));
  CHECK(records.find(kept) == nullptr);
  CHECK(records.time_of(given) == 7);
  CHECK(records.get().find_again(kept.device, kept.problem, kept.bucket) == nullptr);
  put(directory / "cache", other);
  CHECK(records.get().find_again(given.device, given.problem, given.bucket)->chosen_us == 7);
  CHECK(records.get().all(kept.device).size() == 1);
  CHECK_FALSE(records.get().uses_only_given(foreign.device));
  CHECK(records.find(foreign) == nullptr);
  records.get().use_only(kept.device, {});
  CHECK(records.find(given) == nullptr);
  CHECK(records.warnings() == 0);
}

TEST_CASE("a record that is given but not legal here counts as none") {
  Records records;
  TuningRecord wrong = make_record();
  wrong.device.architecture = "sm_80";  // which has no variant of Hopper
  records.get().use_only(wrong.device, {wrong});
  CHECK(records.find(wrong) == nullptr);
  CHECK(records.warnings() == 1);
}

TEST_CASE("damage inside the library is a warning and no more") {
  const std::string builtin = summarize({make_record()});
  Records records;
  records.add_builtin("{").add_builtin(builtin);
  CHECK(records.time_of(make_record()) == 412.5);
  CHECK(records.warnings() == 1);
}

TEST_CASE("threads that look up and keep the same record see whole ones") {
  const TemporaryDirectory directory;
  Records engine(directory.path());
  TuningRecords& records = engine.get();
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i) {
    threads.emplace_back([&records, i] {
      for (int n = 0; n < 20; ++n) {
        const TuningRecord record = make_record(make_h200(), i);
        records.keep(record);
        CHECK(records.find_again(record.device, record.problem, record.bucket));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(records.damaged() == 0);
}

TEST_CASE("processes that write the same record leave one whole") {
  const TemporaryDirectory directory;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 1; i <= 4; ++i) {
    children.push_back(std::make_unique<Child>([&directory, i] {
      for (int n = 0; n < 20; ++n) {
        if (Records(directory.path()).get().keep(make_record(make_h200(), i)).empty()) return false;
        Records reader(directory.path());
        if (!reader.find(make_record()) || reader.get().damaged() != 0) return false;
      }
      return true;
    }));
  }
  for (const auto& child : children) CHECK(child->succeeded());
  const double time = Records(directory.path()).time_of(make_record());
  CHECK(time >= 1);
  CHECK(time <= 4);
  CHECK(count_files(directory.path(), ".json") == 1);
  CHECK(count_files(directory.path(), ".tmp") + count_files(directory.path(), ".bad") == 0);
}
