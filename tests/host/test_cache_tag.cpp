// SPDX-License-Identifier: Apache-2.0
// Whose a directory is, and whose the files in it: what is not the cache's is neither written nor removed.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/directory_layer.h"
#include "cache/own_files.h"
#include "cache/totals.h"
#include "flashjit/engine.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"

using namespace flashjit::cache;
using namespace flashjit::tests;
namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr const char* kRecord = "fwd-bf16-d128.q1-kv1-w1.json";

// Files by their paths, with what is in them.
using Files = std::map<std::string, std::string>;

// What a user may have whose names are those that the cache uses.
const Files kForeign = {{"ab/x.fjc", "x"},
                        {"ab/x.fjc.bad", "x"},
                        {"ab/x.fjc.1.tmp", "x"},
                        {"failed/kernel.cu", "__global__ void kernel() {}"},
                        {"failed/notes.tmp", "x"},
                        {"totals.json", R"({"apples":3})"},
                        {"tuning/models/run1.json", R"({"format":"csv","loss":1})"},
                        {"tuning/models/run.2.json", R"({"format":1})"},
                        {"tuning/models/run1.json.bad", "x"}};

void write(const fs::path& directory, const Files& files) {
  for (const auto& [name, bytes] : files) {
    fs::create_directories((directory / name).parent_path());
    write_bytes(directory / name, bytes);
  }
}

Files read(const fs::path& directory) {
  Files files;
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    if (file.is_regular_file()) files[fs::relative(file.path(), directory).string()] = read_bytes(file.path());
  }
  return files;
}

// A cache as releases before the tag left it.
struct OldCache {
  TemporaryDirectory directory;
  fs::path cache = directory / "cache";
  FailingFileSystem files;  // that does not fail, and does not wait for the disk

  OldCache() {
    REQUIRE(UserDirectoryLayer(cache, {}, files).store(make_key("a"), make_entry("payload")));
    fs::remove(cache / kTagFile);
  }
};

void check_is_refused(const fs::path& directory) {
  const Files before = read(directory);
  UserDirectoryLayer layer(directory);
  CHECK(layer.problem().find(directory.string() + ": must be empty or a cache of flashjit") == 0);
  std::string problem;
  CHECK_FALSE(layer.store(make_key("a"), make_entry("payload"), &problem));
  CHECK(problem == layer.problem());
  CHECK_FALSE(layer.store_record("tuning/models/" + std::string(kRecord), "{}"));
  CHECK_FALSE(layer.keep_failed_source("kernel", std::string(kSourceHeading)));
  CHECK_FALSE(layer.add_to_totals({{"misses", 1}}, kPatience));
  CHECK(layer.lock(make_key("a")).try_lock() == EntryLock::State::unavailable);
  CHECK(layer.collect(0, false).removed.empty());
  CHECK(layer.clear(true).removed.empty());
  CHECK(layer.clear(false).removed.empty());
  CHECK(read(directory) == before);
}

}  // namespace

TEST_CASE("a directory that holds files of others, and nothing of the cache, is neither written nor cleared") {
  for (const auto& foreign : kForeign) {
    const TemporaryDirectory directory;
    CAPTURE(foreign.first);
    write(directory.path(), {foreign});
    check_is_refused(directory.path());
  }
  const TemporaryDirectory all, home;
  write(all.path(), kForeign);
  check_is_refused(all.path());
  write(home.path(), {{".profile", "x"}, {"lock", "busy"}});
  check_is_refused(home.path());
}

TEST_CASE("a directory that is empty, or has what a new file system has, becomes a cache and gets the tag") {
  const TemporaryDirectory directory;
  SUBCASE("empty") {}
  SUBCASE("a new file system") { fs::create_directory(directory / "lost+found"); }
  SUBCASE("whose maker was killed early") {
    write(directory.path(), {{"lock", ""}, {"CACHEDIR.TAG.17.0123456789abcdef.tmp", "Sign"}});
    fs::create_directory(directory / "ab");
    fs::create_directories(directory / "tuning/nvidia");
  }
  UserDirectoryLayer layer(directory.path());
  CHECK(layer.problem().empty());
  CHECK_FALSE(fs::exists(directory / kTagFile));
  CHECK(layer.store(make_key("a"), make_entry("payload")));
  const std::string tag = read_bytes(directory / kTagFile);
  CHECK(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));  // https://bford.info/cachedir/
  CHECK(tag.find("flashjit") != std::string::npos);
}

TEST_CASE("whatever is written first, the tag is there") {
  const auto has_tag = [](const auto& write_first) {
    const TemporaryDirectory directory;
    UserDirectoryLayer layer(directory / "cache");
    write_first(layer);
    return fs::exists(directory / "cache" / kTagFile);
  };
  CHECK(has_tag([](UserDirectoryLayer& layer) { layer.lock(make_key("a")); }));
  CHECK(has_tag([](UserDirectoryLayer& layer) { layer.keep_failed_source("kernel", "source"); }));
  CHECK(has_tag([](UserDirectoryLayer& layer) { layer.store_record("tuning/d/" + std::string(kRecord), "{}"); }));
}

TEST_CASE("a cache of a release before the tag is known by what is in it, goes on, and gets the tag") {
  const TemporaryDirectory directory;
  const auto goes_on = [&](const Files& files) {
    const fs::path cache = directory / std::to_string(files.size());
    write(cache, files);
    UserDirectoryLayer layer(cache);
    CHECK(layer.problem().empty());
    CHECK(layer.store(make_key("a"), make_entry("payload")));
    return fs::exists(cache / kTagFile);
  };
  Files files = {{"totals.json", R"({"compiles":1})"}};
  CHECK(goes_on(files));
  files = {{"notes.txt", "x"}, {"failed/kernel.cu", "// kernel\n" + std::string(kSourceHeading)}};
  CHECK(goes_on(files));
  files = {{"notes.txt", "x"}, {"lock", ""}, {"tuning/d/" + std::string(kRecord), "{}"}};
  CHECK(goes_on(files));
  const OldCache old;
  write(old.cache, {{"notes.txt", "x"}});
  CHECK(payload_of(UserDirectoryLayer(old.cache).find(make_key("a"))) == "payload");
  CHECK(UserDirectoryLayer(old.cache).store(make_key("b"), make_entry("payload")));
  CHECK(fs::exists(old.cache / kTagFile));
}

TEST_CASE("a process that stores nothing adds its counts to an old cache, and the cache gets the tag") {
  OldCache old;
  CHECK(UserDirectoryLayer(old.cache, {}, old.files).add_to_totals({{"user_hits", 2}}, kPatience));
  CHECK(fs::exists(old.cache / kTagFile));
  fs::remove_all(old.cache);
  CHECK_FALSE(UserDirectoryLayer(old.cache, {}, old.files).add_to_totals({{"user_hits", 2}}, kPatience));
  CHECK_FALSE(fs::exists(old.cache));
}

TEST_CASE("a tag of somebody else is left as it is, and says nothing") {
  const std::string theirs = "Signature: 8a477f597d28d172789f06886806bc55\n# made by tar\n";
  const TemporaryDirectory directory;
  write(directory.path(), {{kTagFile, theirs}, {"precious", "x"}});
  check_is_refused(directory.path());
  OldCache old;
  write(old.cache, {{kTagFile, theirs}});
  CHECK(UserDirectoryLayer(old.cache, {}, old.files).store(make_key("b"), make_entry("payload")));
  CHECK(read_bytes(old.cache / kTagFile) == theirs);
}

TEST_CASE("in a cache, what is somebody else's stays, whatever its name") {
  OldCache old;
  write(old.cache, kForeign);
  UserDirectoryLayer layer(old.cache, {}, old.files);
  REQUIRE(layer.store(make_key("b"), make_entry("payload")));
  CHECK_FALSE(layer.add_to_totals({{"misses", 1}}, kPatience));
  CHECK(layer.collect(0, false).removed.size() == 2);
  CHECK(layer.clear(false).removed.empty());
  Files left = read(old.cache);
  CHECK(left.erase(kTagFile) == 1);
  CHECK(left.erase("lock") == 1);
  CHECK(left == kForeign);
}

TEST_CASE("clearing removes what the cache knows as its own by what is in it, and leaves the tag") {
  const TemporaryDirectory directory;
  UserDirectoryLayer layer(directory.path());
  const std::string record = "tuning/nvidia/" + std::string(kRecord);
  REQUIRE(layer.store_record(record, "{}"));
  layer.set_aside_record(record);
  REQUIRE(layer.store_record(record, "{}"));
  REQUIRE(layer.keep_failed_source("kernel", "// kernel\n" + std::string(kSourceHeading)));
  REQUIRE(layer.add_to_totals({{"misses", 1}}, kPatience));
  REQUIRE(layer.store(make_key("a"), make_entry("payload")));
  CHECK(layer.clear(true).removed.size() == 5);
  CHECK(layer.clear(false).removed.size() == 5);
  const Files left = read(directory.path());
  CHECK(left.size() == 2);
  CHECK(left.count(kTagFile) + left.count("lock") == 2);
  CHECK_FALSE(fs::exists(directory / "tuning"));
  CHECK(layer.problem().empty());
}

TEST_CASE("a file in the place of a folder is named by all who meet it, and the cache goes on when it is gone") {
  OldCache old;
  UserDirectoryLayer layer(old.cache, {}, old.files);
  REQUIRE(layer.clear(false).problem.empty());
  CHECK(layer.obstacle().empty());
  const auto stored = layer.store(make_key("a"), make_entry("payload"));
  REQUIRE(stored);
  const fs::path folder = fs::path(*stored).parent_path();
  fs::remove_all(folder);
  write_bytes(folder, "mine");
  CHECK(layer.obstacle().find(folder.string() + ": must be a directory of the cache") == 0);
  CHECK(layer.clear(false).problem == layer.obstacle());
  CHECK(layer.collect(0, false).problem == layer.obstacle());
  std::string problem;
  CHECK_FALSE(layer.store(make_key("a"), make_entry("payload"), &problem));
  CHECK(problem == folder.string() + ": cannot be opened: Not a directory");
  CHECK(read_bytes(folder) == "mine");
  fs::remove(folder);
  CHECK(layer.store(make_key("a"), make_entry("payload")));
  CHECK(layer.clear(false).problem.empty());
}

TEST_CASE("the heading by which sources are known is that of rendered sources") {
  flashjit::Engine engine{flashjit::EngineOptions{}};
  flashjit::Problem problem;
  problem.head_dim = problem.head_dim_v = 64;
  const std::string source = engine.render(problem, engine.default_variant(problem, "sm_80"), "sm_80");
  CHECK(source.find(kSourceHeading) < 1000);
}

TEST_CASE("a directory whose files cannot be listed is not taken for an empty one") {
  const TemporaryDirectory directory;
  write(directory.path(), {{"precious", "x"}});
  FailingFileSystem files;
  files.fail_each(FailingFileSystem::Call::names, EMFILE);
  CHECK_FALSE(UserDirectoryLayer(directory.path(), {}, files).store(make_key("a"), make_entry("payload")));
  CHECK(read(directory.path()) == Files{{"precious", "x"}});
}

TEST_CASE("processes that make a cache at once all take it for theirs") {
  constexpr int kProcesses = 16;
  const TemporaryDirectory directory;
  Pipe start;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(std::make_unique<Child>([&, i] {
      start.close_writer();
      start.wait();  // until the parent closes its end too: then all go at once
      UserDirectoryLayer layer(directory / "cache");
      return layer.store(make_key(std::to_string(i)), make_entry("payload")).has_value() && layer.problem().empty();
    }));
  }
  start.close_writer();
  for (const auto& child : children) CHECK(child->succeeded());
  CHECK(count_files(directory / "cache", ".fjc") == kProcesses);
  CHECK(count_files(directory / "cache", ".tmp") == 0);
}

TEST_CASE("why an entry could not be stored names the place and the system's reason") {
  const TemporaryDirectory directory;
  std::string problem;
  FailingFileSystem full;
  full.fail_each(FailingFileSystem::Call::write, ENOSPC);
  CHECK_FALSE(UserDirectoryLayer(directory / "cache", {}, full).store(make_key("a"), make_entry("x"), &problem));
  CHECK(problem.find((directory / "cache").string()) == 0);
  CHECK(problem.find("No space left on device") != std::string::npos);
  write_bytes(directory / "file", "x");
  CHECK_FALSE(UserDirectoryLayer(directory / "file").store(make_key("a"), make_entry("x"), &problem));
  CHECK(problem == (directory / "file").string() + ": cannot be opened: Not a directory");
  CHECK_FALSE(UserDirectoryLayer(directory / "cache", {10}).store(make_key("a"), make_entry("x"), &problem));
  CHECK(problem.find("is larger than its largest size, 10 bytes") != std::string::npos);
}
