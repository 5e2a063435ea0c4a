// SPDX-License-Identifier: Apache-2.0
// What a callback throws, or a log line that cannot be written, is no error of the work that it tells about.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "flashjit/engine.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/support/logger.h"
#include "runtime/support/parallel.h"
#include "runtime/support/progress.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/fake_compiler.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using runtime::KernelStore;
using runtime::Logger;
using tests::FakeCompiler;

[[noreturn]] void fail(LogLevel, const std::string&) { throw std::runtime_error("no space left"); }

// Whether a kernel comes, while every line of the log fails: that of the directory, which is a file, and that of the
// compile.
bool makes_a_kernel(const Logger& log, const std::filesystem::path& directory) {
  FakeCompiler compiler;
  const auto user = std::make_shared<cache::UserDirectoryLayer>(directory, cache::UserDirectoryOptions{});
  KernelStore store({Policy::compile, user, {{CacheLayer::user, user}}, {}}, compiler, log);
  const auto made = store.get({tests::source_of("kernel", "source"), "sm_90a", {}});
  return made.image->bytes == FakeCompiler::image_of("source", "sm_90a");
}

// In a process of its own, whose stderr is what prepare makes of it.
bool makes_a_kernel_with_stderr(const std::function<void()>& prepare) {
  const tests::TemporaryDirectory directory;
  tests::write_bytes(directory / "file", "");
  tests::Child child([&] {
    prepare();
    ::setenv("FLASHJIT_LOG", "debug", 1);
    return makes_a_kernel(Logger(EngineOptions::from_environment().log), directory / "file");
  });
  return child.succeeded();
}

}  // namespace

TEST_CASE("a log whose lines fail is no error of a call") {
  const tests::TemporaryDirectory directory;
  tests::write_bytes(directory / "file", "");
  CHECK(makes_a_kernel(Logger(fail), directory / "file"));
  CHECK(makes_a_kernel(Logger([](LogLevel, const std::string&) { throw 1; }), directory / "file"));
}

TEST_CASE("a log to a full or closed stderr is no error of a call") {
  CHECK(makes_a_kernel_with_stderr([] { ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO); }));
  CHECK(makes_a_kernel_with_stderr([] { ::close(STDERR_FILENO); }));
}

TEST_CASE("a progress callback that throws stops nothing, in any thread") {
  const runtime::ProgressCallback callback = [](const Progress&) { throw std::runtime_error("no space left"); };
  runtime::ProgressReporter progress(callback, 20);
  std::atomic<int> done{0};
  CHECK_NOTHROW(runtime::parallel_for(20, [&](std::size_t) { progress.around("kernel", [&] { return ++done; }); }));
  CHECK(done == 20);
}
