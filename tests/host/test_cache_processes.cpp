// SPDX-License-Identifier: Apache-2.0
// Many processes on one cache directory: they compile each kernel once, and no lock is needed for a right answer.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/directory_layer.h"
#include "flashjit/error.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/failing_file_system.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_store.h"

using namespace flashjit;
using namespace flashjit::tests;
using cache::FileSystem;
using cache::UserDirectoryLayer;

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int kProcesses = 16;

// Gets kernel 0 in this process and tells what that took.
bool get_and_report(TestStore& store, const Pipe& reports) { return store.gets(0) && reports.send(store.counters()); }

// What a child reported. It has ended well.
Counters report_of(Child& child, Pipe& reports) {
  reports.close_writer();
  Counters counters;
  REQUIRE(reports.receive(counters));
  CHECK(child.succeeded());
  return counters;
}

// Work in many processes that begin together; the sum of what they count.
template <typename Work>
Counters run_together(int processes, Work work) {
  Pipe start, reports;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < processes; ++i) {
    children.push_back(std::make_unique<Child>([&, i] {
      start.close_writer();
      start.wait();  // until the last writer has closed it
      Counters counters;
      return work(i, counters) && reports.send(counters);
    }));
  }
  start.close_writer();
  reports.close_writer();
  Counters sum;
  for (const auto& child : children) CHECK(child->succeeded());
  for (Counters counters; reports.receive(counters);) {
    sum.compiles += counters.compiles;
    sum.user_hits += counters.user_hits;
    sum.wait_timeouts += counters.wait_timeouts;
    sum.quarantined += counters.quarantined;
    sum.write_failures += counters.write_failures;
  }
  return sum;
}

// Says when a lock is found taken.
class LockReportingFileSystem : public FileSystem {
 public:
  explicit LockReportingFileSystem(const Pipe& busy) : busy_(busy) {}
  int lock_byte(int descriptor, std::uint64_t offset) override {
    const int result = FileSystem::lock_byte(descriptor, offset);
    const int reason = errno;
    if (result < 0 && !std::exchange(told_, true)) busy_.signal();
    errno = reason;
    return result;
  }

 private:
  const Pipe& busy_;
  bool told_ = false;
};

// Stops this process as soon as an entry is published.
class StoppingFileSystem : public FileSystem {
 public:
  int rename_at(int directory, const char* from, const char* to) override {
    const int result = FileSystem::rename_at(directory, from, to);
    if (std::string(to).ends_with(".fjc")) ::raise(SIGSTOP);
    return result;
  }
};

// Does something before the first lock is tried.
class InterruptedFileSystem : public FileSystem {
 public:
  explicit InterruptedFileSystem(std::function<void()> interruption) : interruption_(std::move(interruption)) {}
  int lock_byte(int descriptor, std::uint64_t offset) override {
    if (const auto interruption = std::exchange(interruption_, nullptr)) interruption();
    return FileSystem::lock_byte(descriptor, offset);
  }

 private:
  std::function<void()> interruption_;
};

// A process that has the lock of kernel 0 and is in the middle of compiling it, until it is told to go on.
struct Holder {
  explicit Holder(const fs::path& directory, FileSystem& files = cache::system_calls())
      : child([&] {
          FakeCompiler compiler([&](const std::string&) {
            compiling.signal();
            go.wait();
          });
          TestStore store(directory, compiler, TestStore::kLongWait, files);
          return get_and_report(store, reports);
        }) {
    compiling.close_writer();
    REQUIRE(compiling.wait());
  }

  Pipe compiling, go, reports;  // before the child, which inherits them
  Child child;
};

// A process that wants kernel 0 and waits for the holder.
struct Waiter {
  Waiter(const fs::path& directory, milliseconds wait)
      : child([&] {
          FakeCompiler compiler;
          LockReportingFileSystem files(busy);
          TestStore store(directory, compiler, wait, files);
          return get_and_report(store, reports);
        }) {
    busy.close_writer();
    REQUIRE(busy.wait());
  }
  Counters report() { return report_of(child, reports); }

  Pipe busy, reports;
  Child child;
};

// One intact entry, and nothing half done.
void check_holds_entries(const fs::path& directory, int entries) {
  CHECK(count_files(directory, ".fjc") == entries);
  CHECK(count_files(directory, ".tmp") == 0);
  CHECK(count_files(directory, ".bad") == 0);
  FakeCompiler compiler;
  TestStore store(directory, compiler);
  for (int kernel = 0; kernel < entries; ++kernel) CHECK(store.gets(kernel));
  CHECK(store.counters().user_hits == static_cast<std::uint64_t>(entries));
}

std::uint64_t entry_bytes_below(const fs::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& file : fs::recursive_directory_iterator(directory, error)) {
    if (file.path().extension() == ".fjc") bytes += file.file_size();
  }
  return bytes;
}

}  // namespace

TEST_CASE("sixteen processes that ask for one cold kernel compile it once") {
  const TemporaryDirectory directory;
  const Counters sum = run_together(kProcesses, [&](int, Counters& counters) {
    FakeCompiler compiler([](const std::string&) { std::this_thread::sleep_for(milliseconds(200)); });
    TestStore store(directory.path(), compiler);
    const bool right = store.gets(0);
    counters = store.counters();
    return right;
  });
  CHECK(sum.compiles == 1);
  CHECK(sum.user_hits == kProcesses - 1);
  CHECK(sum.wait_timeouts == 0);
  CHECK(sum.write_failures == 0);
  check_holds_entries(directory.path(), 1);
}

TEST_CASE("sixteen processes that ask for eight kernels, each in its own order, compile each once") {
  constexpr int kKernels = 8;
  const TemporaryDirectory directory;
  const Counters sum = run_together(kProcesses, [&](int process, Counters& counters) {
    FakeCompiler compiler([](const std::string&) { std::this_thread::sleep_for(milliseconds(20)); });
    TestStore store(directory.path(), compiler);
    std::vector<int> kernels(kKernels);
    std::iota(kernels.begin(), kernels.end(), 0);
    std::shuffle(kernels.begin(), kernels.end(), std::mt19937(static_cast<unsigned>(process)));
    const bool right = std::all_of(kernels.begin(), kernels.end(), [&](int kernel) { return store.gets(kernel); });
    counters = store.counters();
    return right;
  });
  CHECK(sum.compiles == kKernels);
  CHECK(sum.user_hits == (kProcesses - 1) * kKernels);
  CHECK(sum.wait_timeouts == 0);
  check_holds_entries(directory.path(), kKernels);
}

TEST_CASE("on a file system without locks every process gets its kernel, and one intact entry is left") {
  const TemporaryDirectory directory;
  const Counters sum = run_together(kProcesses, [&](int, Counters& counters) {
    FakeCompiler compiler;
    FailingFileSystem files;
    files.fail_each(FailingFileSystem::Call::lock, ENOLCK);
    TestStore store(directory.path(), compiler, TestStore::kLongWait, files);
    const bool right = store.gets(0);
    counters = store.counters();
    return right;
  });
  CHECK(sum.compiles >= 1);
  CHECK(sum.compiles + sum.user_hits == kProcesses);
  CHECK(sum.write_failures == 0);
  CHECK(sum.quarantined == 0);
  check_holds_entries(directory.path(), 1);
}

TEST_CASE("who waits for a process that was stopped gives up and compiles; the late entry does no harm") {
  const TemporaryDirectory directory;
  Holder holder(directory.path());
  REQUIRE(holder.child.stop());
  Waiter waiter(directory.path(), milliseconds(50));
  const Counters waited = waiter.report();
  CHECK(waited.compiles == 1);
  CHECK(waited.waits == 1);
  CHECK(waited.wait_timeouts == 1);
  check_holds_entries(directory.path(), 1);
  holder.child.resume();
  holder.go.signal();
  const Counters held = report_of(holder.child, holder.reports);
  CHECK(held.compiles == 1);
  CHECK(held.write_failures == 0);
  check_holds_entries(directory.path(), 1);
}

TEST_CASE("who waits for a process that is killed takes over") {
  const TemporaryDirectory directory;
  Holder holder(directory.path());
  Waiter waiter(directory.path(), TestStore::kLongWait);
  holder.child.kill();
  const Counters waited = waiter.report();
  CHECK(waited.compiles == 1);
  CHECK(waited.waits == 1);
  CHECK(waited.wait_timeouts == 0);
  check_holds_entries(directory.path(), 1);
}

TEST_CASE("who waits for a process that was stopped with the lock, after it published, finds the entry") {
  const TemporaryDirectory directory;
  StoppingFileSystem files;
  Holder holder(directory.path(), files);
  Waiter waiter(directory.path(), TestStore::kLongWait);
  holder.go.signal();
  REQUIRE(holder.child.wait_until_stopped());
  const Counters waited = waiter.report();
  CHECK(waited.compiles == 0);
  CHECK(waited.user_hits == 1);
  CHECK(waited.waits == 1);
  CHECK(waited.wait_timeouts == 0);
  holder.child.resume();
  CHECK(report_of(holder.child, holder.reports).compiles == 1);
  check_holds_entries(directory.path(), 1);
}

TEST_CASE("who gets the lock only after another has compiled and gone finds the entry") {
  const TemporaryDirectory directory;
  FakeCompiler compiler;
  InterruptedFileSystem files([&] { CHECK(TestStore(directory.path(), compiler).gets(0)); });
  TestStore store(directory.path(), compiler, TestStore::kLongWait, files);
  CHECK(store.gets(0));
  CHECK(compiler.compiles == 1);
  CHECK(store.counters().user_hits == 1);
  CHECK(store.counters().waits == 0);
}

TEST_CASE("who waits for a process that fails to compile compiles, and hears no other's error") {
  const TemporaryDirectory directory;
  Pipe compiling, go;
  Child failing([&] {
    FakeCompiler compiler([&](const std::string&) {
      compiling.signal();
      go.wait();
      throw Error(ErrorCode::compile_failed, "ptxas error: on purpose");
    });
    TestStore store(directory.path(), compiler);
    try {
      store.gets(0);
    } catch (const Error& error) {
      return error.code() == ErrorCode::compile_failed;
    }
    return false;
  });
  compiling.close_writer();
  REQUIRE(compiling.wait());
  Waiter waiter(directory.path(), TestStore::kLongWait);
  go.signal();
  const Counters waited = waiter.report();
  CHECK(waited.compiles == 1);
  CHECK(waited.wait_timeouts == 0);
  CHECK(failing.succeeded());
  check_holds_entries(directory.path(), 1);
}

TEST_CASE("eight processes that write at once stay below the size together") {
  constexpr int kWriters = 8, kStores = 200;
  constexpr std::uint64_t kMaxBytes = 512 << 10;
  const TemporaryDirectory directory;
  const fs::path path = directory / "cache";
  std::vector<std::unique_ptr<Child>> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.push_back(std::make_unique<Child>([&, writer] {
      FailingFileSystem files;  // fails nowhere, and does not wait for the disk
      UserDirectoryLayer layer(path, {kMaxBytes}, files);
      for (int i = 0; i < kStores; ++i) {
        cache::Key key = make_key("a");
        key.inputs = {static_cast<std::uint64_t>(writer) << 56, static_cast<std::uint64_t>(i)};  // a shard for each
        if (!layer.store(key, make_entry(std::string(4000, 'x')))) return false;
      }
      return true;
    }));
  }
  // They stand still while their files are counted, so that the sum is one that was there at one time.
  std::uint64_t largest = 0;
  int looks = 0;
  for (bool running = true; running; ++looks) {
    running = false;
    for (const auto& writer : writers) running |= writer->stop();
    largest = std::max(largest, entry_bytes_below(path));
    for (const auto& writer : writers) writer->resume();
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (const auto& writer : writers) CHECK(writer->succeeded());
  CHECK(looks > 1);
  CHECK(largest > kMaxBytes / 2);
  CHECK(largest <= kMaxBytes);
  MESSAGE("at most ", largest, " of ", kMaxBytes, " bytes in ", looks, " looks");
}

TEST_CASE("collecting and clearing beside readers and writers disturb nobody") {
  constexpr int kWriters = 3, kRounds = 25, kKernels = 6;
  const TemporaryDirectory directory;
  const fs::path cache = directory / "cache";
  Child collector([&] {
    UserDirectoryLayer layer(cache);
    for (std::uint64_t bytes = 0;; bytes = (bytes + 100) % 1000) layer.collect(bytes, false);
    return false;
  });
  Child cleaner([&] {
    UserDirectoryLayer layer(cache);
    for (;;) layer.clear(false);
    return false;
  });
  const Counters sum = run_together(kWriters, [&](int, Counters& counters) {
    FakeCompiler compiler;
    FailingFileSystem files;  // fails nowhere, and does not wait for the disk
    for (int round = 0; round < kRounds; ++round) {
      TestStore store(cache, compiler, TestStore::kLongWait, files);
      for (int kernel = 0; kernel < kKernels; ++kernel) {
        if (!store.gets(kernel)) return false;
      }
      counters.quarantined += store.counters().quarantined;
      counters.compiles += store.counters().compiles;
    }
    return true;
  });
  CHECK(collector.running());
  CHECK(cleaner.running());
  collector.kill();
  cleaner.kill();
  CHECK(sum.quarantined == 0);
  CHECK(sum.compiles > kKernels);  // entries were really taken away
  FakeCompiler compiler;
  TestStore store(cache, compiler);
  for (int kernel = 0; kernel < kKernels; ++kernel) CHECK(store.gets(kernel));
  CHECK(store.counters().write_failures == 0);
}
