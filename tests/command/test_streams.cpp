// SPDX-License-Identifier: Apache-2.0
// The command where its standard streams are full, closed, or read by nobody.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cli/io/npy.h"
#include "tests/support/cache_entries.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit;
using namespace flashjit::tests;

// On the CPU, and says on stderr that it does.
constexpr const char* kAttend = "attend q.npy k.npy v.npy -o o.npy";

class Workshop {
 public:
  explicit Workshop(std::int64_t seqlen = 5) {
    const Dims shape = {1, seqlen, 2, 16};
    std::uint64_t seed = 0;
    for (const char* name : {"q.npy", "k.npy", "v.npy"})
      write_bytes(path() / name, cli::npy_bytes(HostTensor::random_normal(DType::f32, shape, ++seed)));
  }

  const fs::path& path() const { return directory_.path(); }
  std::string text(const char* name) const { return read_bytes(path() / name); }

  // The exit code, or 128 and the signal, as a shell has it. Redirections are the shell's, in this directory.
  int run(const std::string& arguments, const std::string& redirections) const {
    const std::string line = fmt::format("cd '{}' && {} FLASHJIT_CACHE_DIR=cache '{}' {} {}", path().string(),
                                         kBareEnvironment, FLASHJIT_COMMAND, arguments, redirections);
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  TemporaryDirectory directory_;
};

// A descriptor of a pipe that nobody reads, which a shell can name.
class BrokenPipe {
 public:
  static constexpr int kDescriptor = 9;
  BrokenPipe() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    REQUIRE(::dup2(ends[1], kDescriptor) == kDescriptor);
    ::close(ends[0]);
    ::close(ends[1]);
    std::signal(SIGPIPE, SIG_DFL);  // children have it as from a shell
  }
  ~BrokenPipe() { ::close(kDescriptor); }
  BrokenPipe(const BrokenPipe&) = delete;
  BrokenPipe& operator=(const BrokenPipe&) = delete;
};

}  // namespace

TEST_CASE("a stdout that cannot be written is an error in one line, whatever was to be printed") {
  const Workshop shop;
  for (const char* arguments :
       {"--help", "--version", "help", "help compile", "compile --help", "cache --help", "completion bash", "info",
        "info --json", "cache ls", "cache ls --json", "cache path", "cache verify", "cache gc --dry-run",
        "variants --arch sm_90a", "variants --arch sm_90a --explain --json", "render --arch sm_80",
        "attend q.npy k.npy v.npy -o o.npy --device cpu"}) {
    CAPTURE(std::string(arguments));
    CHECK(shop.run(arguments, ">/dev/full 2>message") == 2);
    CHECK(shop.text("message") == "flashjit: standard output: cannot be written: No space left on device\n");
    CHECK(shop.run(arguments, ">&- 2>message") == 2);
    CHECK(shop.text("message") == "flashjit: standard output: cannot be written: Bad file descriptor\n");
  }
  CHECK(shop.run("render --arch sm_80 -o kernel.cu", ">&-") == 0);  // prints nothing
}

TEST_CASE("a stderr that cannot be written changes neither the work nor the exit code") {
  const Workshop shop;
  REQUIRE(shop.run(kAttend, ">out 2>message") == 0);
  REQUIRE(mentions(shop.text("message"), "flashjit: no GPU"));
  const std::string expected = shop.text("o.npy");
  const BrokenPipe pipe;
  for (const std::string& redirection :
       {std::string("2>/dev/full"), std::string("2>&-"), std::string("2>/dev/full >&2"),
        fmt::format("2>&{}", BrokenPipe::kDescriptor)}) {
    CAPTURE(redirection);
    fs::remove(shop.path() / "o.npy");
    const bool result_lost = redirection.ends_with(">&2");
    CHECK(shop.run(kAttend, (result_lost ? "" : ">out ") + redirection) == (result_lost ? 2 : 0));
    CHECK(shop.text("o.npy") == expected);
    CHECK(shop.run("dance", redirection) == 2);
    CHECK(shop.run("compile --arch sm_80", redirection) == 2);
    CHECK(shop.run("", redirection) == 2);
  }
}

// Long enough that the first second, in which progress is silent, is over.
TEST_CASE("progress that cannot be written is no trouble") {
  const Workshop shop(3000);
  CHECK(shop.run("attend q.npy k.npy v.npy -o o.npy --device cpu --check", ">out 2>/dev/full") == 0);
  CHECK(mentions(shop.text("out"), "passed"));
}

TEST_CASE("no file is opened in the place of a closed stream, where messages would go into it") {
  const Workshop shop;
  REQUIRE(shop.run(kAttend, ">out 2>message") == 0);
  const std::string expected = shop.text("o.npy");
  for (const auto& [redirection, exit_code] : {std::pair("<&- >out 2>message", 0), std::pair("<&- >out 2>&-", 0),
                                               std::pair("<&- >&- 2>&-", 2), std::pair(">&- 2>message", 2)}) {
    CAPTURE(std::string(redirection));
    fs::remove(shop.path() / "o.npy");
    CHECK(shop.run(kAttend, redirection) == exit_code);
    CHECK(shop.text("o.npy") == expected);
  }
}

TEST_CASE("a reader of stdout that goes away ends the command as it ends other parts of a pipeline") {
  const Workshop shop;
  const BrokenPipe pipe;
  CHECK(shop.run("info", fmt::format(">&{} 2>message", BrokenPipe::kDescriptor)) == 128 + SIGPIPE);
  CHECK(shop.text("message").empty());
  std::signal(SIGPIPE, SIG_IGN);  // asked not to
  CHECK(shop.run("info", fmt::format(">&{} 2>message", BrokenPipe::kDescriptor)) == 2);
  CHECK(shop.text("message") == "flashjit: standard output: cannot be written: Broken pipe\n");
  std::signal(SIGPIPE, SIG_DFL);
}
