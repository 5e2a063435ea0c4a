// SPDX-License-Identifier: Apache-2.0
// How an engine's kernels come from memory, the layers of the cache and the compiler, and what is counted and said.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/bundle_layer.h"
#include "cache/directory_layer.h"
#include "flashjit/error.h"
#include "flashjit/version.h"
#include "runtime/kernels/counters.h"
#include "runtime/kernels/kernel_store.h"
#include "tests/support/cache_entries.h"
#include "tests/support/error_code.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using namespace flashjit::runtime;
using tests::code_of;
using tests::FailingFileSystem;
using tests::FakeCompiler;
using tests::TemporaryDirectory;
namespace fs = std::filesystem;

constexpr const char* kTarget = "sm_90a";
constexpr std::chrono::milliseconds kShortWait{5}, kLongWait{600'000};

KernelRequest request_for(int number) {
  const std::string text = std::to_string(number);
  return {tests::source_of("kernel-" + text, "source " + text), kTarget, {{"problem", "p" + text}}};
}

std::string right_bytes(int number) { return FakeCompiler::image_of("source " + std::to_string(number), kTarget); }

std::shared_ptr<cache::UserDirectoryLayer> user_layer(const fs::path& directory,
                                                      cache::FileSystem& files = cache::system_calls()) {
  return std::make_shared<cache::UserDirectoryLayer>(directory, cache::UserDirectoryOptions{}, files);
}

KernelStoreOptions options_with(std::shared_ptr<cache::UserDirectoryLayer> user, Policy policy = Policy::compile) {
  return {policy, user, {{CacheLayer::user, user}}, kLongWait};
}

// A store with a compiler of its own, and what it logged.
class Shop {
 public:
  explicit Shop(KernelStoreOptions options, std::function<void(const std::string&)> hook = {})
      : compiler(std::move(hook)),
        log_([this](LogLevel level, const std::string& line) { note(level, line); }),
        store_(std::move(options), compiler, log_) {}
  explicit Shop(const fs::path& directory, std::function<void(const std::string&)> hook = {})
      : Shop(options_with(user_layer(directory)), std::move(hook)) {}

  // The kernel must be the right one, wherever it comes from.
  KernelStore::Result get(int number) {
    KernelStore::Result result = store_.get(request_for(number));
    CHECK(result.image->bytes == right_bytes(number));
    return result;
  }
  KernelStore& store() { return store_; }
  Counters counters() const { return store_.counters(); }
  int warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }
  bool has_said(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) { return line.find(text) != line.npos; });
  }

  FakeCompiler compiler;

 private:
  void note(LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex_);
    warnings_ += level == LogLevel::warning;
    lines_.push_back(line);
  }

  std::mutex mutex_;
  int warnings_ = 0;
  std::vector<std::string> lines_;
  const Logger log_;
  KernelStore store_;
};

std::string bundle_of(int number) {
  Shop shop(KernelStoreOptions{});
  shop.get(number);
  return shop.store().bundle();
}

// A compiler that is another one when it is opened: what was found first does not serve.
class ReplacedCompiler : public FakeCompiler {
 public:
  std::string identity() override { return opened_ ? "fake-1.0" : "fake-2.0"; }
  std::string version() override {
    opened_ = true;
    return FakeCompiler::version();
  }

 private:
  bool opened_ = false;
};

// Files in which no entry can be found, as on a network file system that shows the files of others late.
class ShortSightedFileSystem : public FailingFileSystem {
 public:
  int open_at(int directory, const char* path, int flags, mode_t mode) override {
    if (!std::string(path).ends_with(".fjc")) return FailingFileSystem::open_at(directory, path, flags, mode);
    errno = ENOENT;
    return -1;
  }
};

// What a Shop would store, without one.
fs::path store_in(cache::UserDirectoryLayer& layer, int number) {
  const KernelRequest request = request_for(number);
  FakeCompiler compiler;
  cache::Key key = request.key();
  key.compiler = compiler.identity();
  const auto file = layer.store(
      key, entry_of(request, compiler.compile(request.source().text(), "", request.target()), compiler.version()));
  REQUIRE(file);
  return *file;
}

void fill(const fs::path& directory, int number) { Shop(directory).get(number); }

fs::path file_of(Shop& shop, int number) { return shop.get(number).image->cache_file; }

// In a way that the number chooses: cut, flipped, zeroed, swapped, longer, or another kind of thing in its place.
void damage(const fs::path& file, int number, const fs::path& other) {
  std::string bytes = tests::read_bytes(file);
  const std::size_t place = static_cast<std::size_t>(number) % bytes.size();
  switch (number % 7) {
    case 0:
      return tests::write_bytes(file, bytes.substr(0, place));
    case 1:
      bytes[place] = static_cast<char>(bytes[place] ^ 1);
      return tests::write_bytes(file, bytes);
    case 2:
      return tests::write_bytes(file, std::string(bytes.size(), '\0'));
    case 3:
      return tests::write_bytes(file, tests::read_bytes(other));
    case 4:
      return tests::write_bytes(file, bytes + "more");
    case 5:
      fs::remove(file);
      fs::create_directory(file);
      return tests::write_bytes(file / "inside", "x");
    default:
      fs::remove(file);
      return fs::create_symlink(other, file);
  }
}

}  // namespace

TEST_CASE("a kernel comes from the first layer that has it, and each layer has its counter") {
  const TemporaryDirectory user, system, second_system, file;
  fill(user.path(), 1);
  for (const int number : {1, 2}) fill(system.path(), number);
  for (const int number : {1, 2, 3}) fill(second_system.path(), number);
  const std::string in_file = bundle_of(4), embedded = bundle_of(5);
  tests::write_bytes(file / "a.fjb", in_file);

  KernelStoreOptions options = options_with(user_layer(user.path()));
  options.layers.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(system.path())});
  options.layers.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(second_system.path())});
  options.layers.push_back({CacheLayer::bundle, std::make_shared<cache::BundleLayer>(file / "a.fjb")});
  options.layers.push_back({CacheLayer::embedded, std::make_shared<cache::BundleLayer>(embedded, "embedded")});
  Shop shop(options);
  using Origin = KernelInfo::Origin;
  const std::pair<std::string, Origin> expected[] = {{user.path(), Origin::disk},
                                                     {system.path(), Origin::disk},
                                                     {second_system.path(), Origin::disk},
                                                     {(file / "a.fjb").string() + ":", Origin::bundle},
                                                     {"embedded:", Origin::bundle}};
  for (int number = 1; number <= 5; ++number) {
    const auto& [place, origin] = expected[number - 1];
    const KernelStore::Result result = shop.get(number);
    CHECK(result.image->cache_file.starts_with(place));
    CHECK(result.image->origin == origin);
    CHECK(result.image->registers == 168);
    CHECK(result.image->compile_ms == (origin == Origin::disk ? 412.5 : 0));
    CHECK_FALSE(result.from_memory);
  }
  CHECK(shop.get(5).from_memory);
  CHECK(shop.get(6).image->origin == Origin::compiled);
  const Counters counters = shop.counters();
  CHECK(counters.memory_hits == 1);
  CHECK(counters.user_hits == 1);
  CHECK(counters.system_hits == 2);
  CHECK(counters.bundle_hits == 1);
  CHECK(counters.embedded_hits == 1);
  CHECK(counters.misses == 1);
  CHECK(counters.compiles == 1);
  CHECK(counters.quarantined + counters.write_failures + counters.waits == 0);
  CHECK(shop.warnings() == 0);
}

TEST_CASE("bytes are those of the entries' files") {
  const TemporaryDirectory directory;
  Shop writer(directory.path());
  const auto bytes = fs::file_size(file_of(writer, 1)) + fs::file_size(file_of(writer, 2));
  CHECK(writer.counters().bytes_written == bytes);
  CHECK(writer.counters().bytes_read == 0);
  Shop reader(directory.path());
  for (const int number : {1, 2, 2}) reader.get(number);
  CHECK(reader.counters().bytes_read == bytes);
  CHECK(reader.counters().bytes_written == 0);
}

TEST_CASE("the entry says what the kernel is") {
  const TemporaryDirectory directory;
  Shop shop(directory.path());
  const auto entry = cache::decode(tests::read_bytes(file_of(shop, 7)));
  REQUIRE(entry);
  cache::Facts facts = entry->facts;
  CHECK(facts["inputs"].size() == 32);
  facts.erase("inputs");
  CHECK(facts == cache::Facts{{"name", "kernel-7"},
                              {"entry", "entry"},
                              {"problem", "p7"},
                              {"architecture", "sm_90a"},
                              {"version", version()},
                              {"nvrtc", "1.0"},
                              {"compiler", "fake-1.0"},
                              {"registers", "168"},
                              {"spill_bytes", "0"},
                              {"stack_bytes", "0"},
                              {"compile_ms", "412.500"}});
}

TEST_CASE("policy cache_only reads every layer, and writes and locks nothing") {
  const TemporaryDirectory user, system;
  fill(system.path(), 1);
  KernelStoreOptions options = options_with(user_layer(user / "cache"), Policy::cache_only);
  options.layers.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(system.path())});
  {
    Shop shop(options);
    shop.get(1);
    CHECK(code_of([&] { shop.get(2); }) == ErrorCode::cache_miss);
    CHECK(shop.counters().system_hits == 1);
    CHECK(shop.counters().misses == 1);
    CHECK(shop.compiler.compiles == 0);
    CHECK_FALSE(shop.store().may_compile());
  }
  CHECK_FALSE(fs::exists(user / "cache"));
}

TEST_CASE("policy off neither reads nor writes any layer") {
  const TemporaryDirectory user;
  fill(user.path(), 1);
  KernelStoreOptions options = options_with(user_layer(user.path()), Policy::off);
  options.layers.push_back({CacheLayer::embedded, std::make_shared<cache::BundleLayer>("damaged", "embedded")});
  const int files = tests::count_files(user.path(), "");
  {
    Shop shop(options);
    CHECK(shop.get(1).image->cache_file.empty());
    shop.get(2);
    CHECK(shop.counters().compiles == 2);
    CHECK(shop.counters().user_hits == 0);
    CHECK(shop.warnings() == 0);
  }
  CHECK(tests::count_files(user.path(), "") == files);
}

TEST_CASE("threads that ask for one cold kernel compile it once") {
  const TemporaryDirectory directory;
  Shop shop(directory.path());
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) threads.emplace_back([&] { shop.get(1); });
  for (std::thread& thread : threads) thread.join();
  CHECK(shop.compiler.compiles == 1);
  CHECK(shop.counters().memory_hits == 15);
  CHECK(shop.counters().misses == 1);
}

TEST_CASE("two stores on one directory compile a cold kernel once: the second waits, and says so") {
  const TemporaryDirectory directory;
  std::promise<void> started, may_finish;
  Shop first(directory.path(), [&](const std::string&) {
    started.set_value();
    may_finish.get_future().wait();
  });
  Shop second(directory.path());
  std::thread compiling([&] { first.get(1); });
  started.get_future().wait();
  std::thread waiting([&] { CHECK(second.get(1).image->origin == KernelInfo::Origin::disk); });
  while (!second.has_said("waiting for another process")) std::this_thread::yield();
  // Another kernel is nobody's turn yet.
  second.get(2);
  may_finish.set_value();
  compiling.join();
  waiting.join();
  CHECK(first.compiler.compiles == 1);
  CHECK(first.counters().waits == 0);
  CHECK(second.compiler.compiles == 1);
  CHECK(second.counters().waits == 1);
  CHECK(second.counters().wait_timeouts == 0);
  CHECK(second.counters().user_hits == 1);
  CHECK(second.counters().misses == 1);
  CHECK(second.warnings() == 0);
}

TEST_CASE("who waited for a compilation that failed compiles itself") {
  const TemporaryDirectory directory;
  std::promise<void> started, may_finish;
  Shop failing(directory.path(), [&](const std::string&) {
    started.set_value();
    may_finish.get_future().wait();
    throw Error(ErrorCode::compile_failed, "ptxas error");
  });
  Shop waiting(directory.path());
  std::thread compiling([&] { CHECK(code_of([&] { failing.get(1); }) == ErrorCode::compile_failed); });
  started.get_future().wait();
  std::thread thread([&] { waiting.get(1); });
  while (!waiting.has_said("waiting for another process")) std::this_thread::yield();
  may_finish.set_value();
  compiling.join();
  thread.join();
  CHECK(waiting.compiler.compiles == 1);
  CHECK(waiting.counters().waits == 1);
  CHECK(waiting.counters().wait_timeouts == 0);
}

TEST_CASE("a wait that takes too long ends in a compilation, and is told") {
  const TemporaryDirectory directory;
  const auto other = user_layer(directory.path());
  cache::EntryLock lock = other->lock(request_for(1).key());
  REQUIRE(lock.try_lock() == cache::EntryLock::State::held);
  for (const auto wait : {kShortWait, std::chrono::milliseconds(0), std::chrono::milliseconds(-1)}) {
    KernelStoreOptions options = options_with(user_layer(directory.path()));
    options.compile_wait = wait;
    Shop shop(options);
    fs::remove_all(directory / request_for(1).key().inputs.hex().substr(0, 2));
    CHECK(shop.get(1).image->origin == KernelInfo::Origin::compiled);
    CHECK(shop.counters().waits == 1);
    CHECK(shop.counters().wait_timeouts == 1);
    CHECK(shop.counters().misses == 1);
    CHECK(shop.warnings() == 1);
    CHECK(shop.has_said("another process is still compiling it after"));
  }
}

TEST_CASE("where nothing can be locked every store compiles, and one entry is left") {
  const TemporaryDirectory directory;
  FailingFileSystem files;
  files.fail_each(FailingFileSystem::Call::lock, ENOLCK);
  std::atomic<int> compiling{0};
  const auto together = [&](const std::string&) {
    ++compiling;
    while (compiling < 4) std::this_thread::yield();
  };
  std::vector<std::unique_ptr<Shop>> shops;
  for (int i = 0; i < 4; ++i) {
    shops.push_back(std::make_unique<Shop>(options_with(user_layer(directory.path(), files)), together));
  }
  std::vector<std::thread> threads;
  for (const auto& shop : shops) threads.emplace_back([&] { shop->get(1); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& shop : shops) {
    CHECK(shop->compiler.compiles == 1);
    CHECK(shop->counters().waits == 0);
    CHECK(shop->warnings() == 0);
  }
  CHECK(tests::count_files(directory.path(), ".fjc") == 1);
  CHECK(tests::count_files(directory.path(), ".tmp") == 0);
}

TEST_CASE("who cannot see the entry of another yet compiles it again") {
  const TemporaryDirectory directory;
  fill(directory.path(), 1);
  ShortSightedFileSystem files;
  Shop shop(options_with(user_layer(directory.path(), files)));
  CHECK(shop.get(1).image->origin == KernelInfo::Origin::compiled);
  CHECK(shop.counters().compiles == 1);
  CHECK(shop.warnings() == 0);
  Shop next(directory.path());
  next.get(1);
  CHECK(next.counters().user_hits == 1);
}

TEST_CASE("a compilation that fails publishes nothing, keeps the source, and is tried again by whoever asks next") {
  const TemporaryDirectory directory;
  Shop shop(directory.path(), [](const std::string&) { throw Error(ErrorCode::compile_failed, "ptxas error", "log"); });
  for (int i = 0; i < 2; ++i) {
    try {
      shop.get(1);
      FAIL("an Error was expected");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::compile_failed);
      CHECK(error.log() == "log");
      CHECK(error.source_path() == (directory / "failed/kernel-1.cu").string());
      CHECK(error.what() == "ptxas error; its source is in " + error.source_path());
      CHECK(tests::read_bytes(error.source_path()) == "source 1");
    }
  }
  CHECK(tests::count_files(directory.path(), ".fjc") == 0);
  CHECK(shop.counters().misses == 2);
  CHECK(shop.counters().compiles == 0);
  Shop next(directory.path());
  next.get(1);
  CHECK(next.counters().waits == 0);
}

TEST_CASE("a compilation that fails otherwise keeps no source") {
  const TemporaryDirectory directory;
  Shop shop(directory.path(), [](const std::string&) { throw Error(ErrorCode::unsupported, "no such target"); });
  CHECK(code_of([&] { shop.get(1); }) == ErrorCode::unsupported);
  CHECK_FALSE(fs::exists(directory / "failed"));
}

TEST_CASE("a directory that others may write to is neither read nor written, which is told once") {
  const TemporaryDirectory user, system;
  fill(user.path(), 1);
  fill(system.path(), 2);
  const int files = tests::count_files(user.path(), "");
  REQUIRE(::chmod(user.path().c_str(), 0777) == 0);
  KernelStoreOptions options = options_with(user_layer(user.path()));
  options.layers.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(system.path())});
  {
    Shop shop(options, [](const std::string& source) {
      if (source == "source 4") throw Error(ErrorCode::compile_failed, "ptxas error");
    });
    for (const int number : {1, 3}) CHECK(shop.get(number).image->cache_file.empty());
    CHECK(shop.get(2).image->origin == KernelInfo::Origin::disk);
    CHECK(shop.get(1).from_memory);
    CHECK(code_of([&] { shop.get(4); }) == ErrorCode::compile_failed);
    CHECK(shop.counters().user_hits == 0);
    CHECK(shop.counters().system_hits == 1);
    CHECK(shop.counters().compiles == 2);
    CHECK(shop.counters().write_failures == 2);
    CHECK(shop.warnings() == 1);
    CHECK(shop.has_said(user.path().string() + ": must not be writable by others, has mode 0777"));
    CHECK(shop.has_said("kernels are kept in memory only"));
  }
  CHECK(tests::count_files(user.path(), "") == files);
}

TEST_CASE("a system directory or a bundle that cannot be used is told once, and the others serve") {
  const TemporaryDirectory user, system;
  fill(system.path(), 1);
  REQUIRE(::chmod(system.path().c_str(), 0777) == 0);
  const std::string embedded = bundle_of(1);
  KernelStoreOptions options = options_with(user_layer(user.path()));
  options.layers.push_back({CacheLayer::system, std::make_shared<cache::DirectoryLayer>(system.path())});
  options.layers.push_back({CacheLayer::bundle, std::make_shared<cache::BundleLayer>(user / "missing.fjb")});
  options.layers.push_back({CacheLayer::embedded, std::make_shared<cache::BundleLayer>(embedded, "embedded")});
  Shop shop(options);
  for (const int number : {1, 2}) shop.get(number);
  CHECK(shop.counters().embedded_hits == 1);
  CHECK(shop.counters().write_failures == 0);
  CHECK(shop.warnings() == 2);
  CHECK(shop.has_said("this part of the cache is not used"));
}

TEST_CASE("what cannot be written is used from memory, which is told once") {
  const TemporaryDirectory directory;
  FailingFileSystem files;
  files.fail_each(FailingFileSystem::Call::write, ENOSPC);
  Shop shop(options_with(user_layer(directory.path(), files)));
  for (const int number : {1, 2}) CHECK(shop.get(number).image->cache_file.empty());
  CHECK(shop.get(1).from_memory);
  CHECK(shop.counters().write_failures == 2);
  CHECK(shop.counters().bytes_written == 0);
  CHECK(shop.warnings() == 1);
  CHECK(tests::count_files(directory.path(), ".fjc") == 0);
}

TEST_CASE("a read-only directory serves what it has") {
  const TemporaryDirectory directory;
  fill(directory.path(), 1);
  FailingFileSystem files;
  for (const auto call : {FailingFileSystem::Call::make_directory, FailingFileSystem::Call::write}) {
    files.fail_each(call, EROFS);
    Shop shop(options_with(user_layer(directory.path(), files)));
    shop.get(1);
    shop.get(2);
    CHECK(shop.counters().user_hits == 1);
    CHECK(shop.counters().write_failures == 1);
  }
}

TEST_CASE("a thousand entries that are damaged in every way heal without an error") {
  constexpr int kEntries = 1000;
  const TemporaryDirectory directory;
  FailingFileSystem quick;  // does not wait for the disk
  std::vector<fs::path> files;
  const auto layer = user_layer(directory.path(), quick);
  const fs::path untouched = store_in(*layer, kEntries);
  for (int i = 0; i < kEntries; ++i) files.push_back(store_in(*layer, i));
  for (int i = 0; i < kEntries; ++i) damage(files[static_cast<std::size_t>(i)], i, untouched);
  Shop healing(options_with(user_layer(directory.path(), quick)));
  for (int i = 0; i < kEntries; ++i) healing.get(i);
  CHECK(healing.counters().quarantined == kEntries);
  CHECK(healing.counters().compiles == kEntries);
  CHECK(healing.counters().write_failures == 0);

  Shop healed(options_with(user_layer(directory.path(), quick)));
  for (int i = 0; i < kEntries; ++i) healed.get(i);
  CHECK(healed.counters().user_hits == kEntries);
  CHECK(healed.counters().quarantined == 0);
  CHECK(healed.compiler.compiles == 0);
}

TEST_CASE("a kernel that the driver refused is compiled anew, replaced and counted") {
  const TemporaryDirectory directory;
  fill(directory.path(), 1);
  Shop shop(directory.path());
  shop.get(1);
  CHECK(shop.store().replace(request_for(1))->origin == KernelInfo::Origin::compiled);
  CHECK(shop.counters().quarantined == 1);
  CHECK(shop.get(1).image->origin == KernelInfo::Origin::compiled);
}

TEST_CASE("a bundle has every kernel once, whatever their order and wherever they came from") {
  const TemporaryDirectory directory;
  Shop compiled(directory.path()), loaded(directory.path()), off(options_with(nullptr, Policy::off));
  CHECK(off.store().bundle() == cache::encode_bundle({}));
  for (const int number : {1, 2, 3, 1}) compiled.get(number);
  for (const int number : {3, 2, 1}) loaded.get(number);
  for (const int number : {2, 3, 1}) off.get(number);
  const std::string bundle = compiled.store().bundle();
  CHECK(loaded.compiler.compiles == 0);
  CHECK(loaded.store().bundle() == bundle);
  CHECK(off.store().bundle() == bundle);

  KernelStoreOptions options;
  options.policy = Policy::cache_only;
  options.layers.push_back({CacheLayer::embedded, std::make_shared<cache::BundleLayer>(bundle, "embedded")});
  Shop embedded(options);
  for (const int number : {1, 2, 3}) CHECK(embedded.get(number).image->compile_ms == 0);
  CHECK(embedded.counters().embedded_hits == 3);
  CHECK(embedded.store().bundle() == bundle);
}

TEST_CASE("a kernel that is being compiled, or that failed, is not in the bundle") {
  std::promise<void> started, may_finish;
  Shop shop(KernelStoreOptions{}, [&](const std::string& source) {
    if (source == "source 2") throw Error(ErrorCode::compile_failed, "ptxas error");
    if (source != "source 3") return;
    started.set_value();
    may_finish.get_future().wait();
  });
  shop.get(1);
  CHECK(code_of([&] { shop.get(2); }) == ErrorCode::compile_failed);
  std::thread thread([&] { shop.get(3); });
  started.get_future().wait();
  CHECK(shop.store().bundle() == bundle_of(1));
  may_finish.set_value();
  thread.join();
}

TEST_CASE("the counters of all stores on a directory add up") {
  const TemporaryDirectory directory;
  const auto layer = user_layer(directory.path());
  {
    Shop shop(directory.path());
    for (const int number : {1, 2, 2}) shop.get(number);
    CHECK(to_counters(layer->totals()).compiles == 2);
  }
  for (int i = 0; i < 3; ++i) {
    Shop shop(directory.path());
    for (const int number : {1, 1, 2}) shop.get(number);
  }
  const Counters totals = to_counters(layer->totals());
  CHECK(totals.memory_hits == 4);
  CHECK(totals.misses == 2);
  CHECK(totals.compiles == 2);
  CHECK(totals.user_hits == 6);
  CHECK(totals.bytes_read == 3 * totals.bytes_written);
}

TEST_CASE("totals have a name for each counter, and leave out names of other releases") {
  Counters counters;
  counters.memory_hits = 3;
  counters.bytes_written = 5;
  cache::Totals totals = counted_since({}, counters);
  CHECK(totals == cache::Totals{{"memory_hits", 3}, {"bytes_written", 5}});
  totals["of_tomorrow"] = 1;
  CHECK(to_counters(totals).memory_hits == 3);
  CHECK(to_counters(totals).bytes_written == 5);
  CHECK(counted_since(counters, counters).empty());
}

TEST_CASE("when the compiler that was found does not serve, the kernels of the next one are taken") {
  const tests::TemporaryDirectory directory;
  fill(directory.path(), 1);
  ReplacedCompiler compiler;
  const Logger log(nullptr);
  KernelStore store(options_with(user_layer(directory.path())), compiler, log);
  CHECK(store.get(request_for(1)).image->bytes == right_bytes(1));
  CHECK(store.counters().user_hits == 1);
  CHECK(compiler.compiles == 0);
  CHECK(store.get(request_for(2)).image->bytes == right_bytes(2));
  CHECK(compiler.compiles == 1);
}
