// SPDX-License-Identifier: Apache-2.0
// Files that the command writes: whole or not at all, whatever other processes left, and with the rights they had.
#include <doctest/doctest.h>
#include <flashjit/error.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/io/output_file.h"
#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit;
using namespace flashjit::tests;
using cli::OutputFile;

constexpr std::time_t kHour = 3600;
constexpr uid_t kNobody = 65534;

void write_out(const fs::path& file, const std::string& text) {
  OutputFile output("--output", file.string());
  output.write(text);
  output.publish();
}

struct stat status_of(const fs::path& file) {
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  return status;
}

int mode_of(const fs::path& file) { return static_cast<int>(status_of(file).st_mode & 07777); }

void leave(const fs::path& file, std::time_t age) {
  write_bytes(file, "half");
  const timespec time = {std::time(nullptr) - age, 0};
  const timespec times[] = {time, time};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  const mode_t before_;
};

}  // namespace

TEST_CASE("what a killed process of the same id left is in nobody's way") {
  const TemporaryDirectory directory;
  const fs::path file = directory / "k.fjb";
  leave(directory / fmt::format(".k.fjb.{}.tmp", ::getpid()), 0);  // the name that releases before gave
  write_out(file, "whole");
  CHECK(read_bytes(file) == "whole");
}

TEST_CASE("two that write the same file at once are not in each other's way") {
  const TemporaryDirectory directory;
  const fs::path file = directory / "k.fjb";
  OutputFile first("--output", file.string()), second("--output", file.string());
  first.write("first");
  second.write("second");
  first.publish();
  second.publish();
  CHECK(read_bytes(file) == "second");
  CHECK(count_files(directory.path(), "") == 1);
}

TEST_CASE("what was left beside a file more than a day ago is swept, what is newer or another's stays") {
  const TemporaryDirectory directory;
  const std::vector<std::string> left = {".k.fjb.1.tmp", ".k.fjb.1.0123456789abcdef.tmp"};
  const std::vector<std::string> others = {".k.fjb.tmp",   ".k.fjb..tmp", ".k.fjb.x.tmp",    ".k.fjb.1.2.tmp",
                                           ".l.fjb.1.tmp", "k.fjb.1.tmp", ".k.fjb.1.tmp.old"};
  for (const std::string& name : left) leave(directory / name, 25 * kHour);
  for (const std::string& name : others) leave(directory / name, 25 * kHour);
  leave(directory / ".k.fjb.2.tmp", 23 * kHour);
  fs::create_directory(directory / ".k.fjb.3.tmp");
  fs::create_symlink("k.fjb", directory / ".k.fjb.4.tmp");
  if (::geteuid() == 0) {
    leave(directory / ".k.fjb.5.tmp", 25 * kHour);
    REQUIRE(::chown((directory / ".k.fjb.5.tmp").c_str(), kNobody, kNobody) == 0);
  }
  write_out(directory / "k.fjb", "whole");
  for (const std::string& name : left) CHECK_FALSE(fs::exists(directory / name));
  for (const std::string& name : others) CHECK(fs::exists(directory / name));
  for (const char* name : {".k.fjb.2.tmp", ".k.fjb.3.tmp"}) CHECK(fs::exists(directory / name));
  CHECK(fs::is_symlink(directory / ".k.fjb.4.tmp"));
  if (::geteuid() == 0) CHECK(fs::exists(directory / ".k.fjb.5.tmp"));
}

TEST_CASE("a file that is replaced keeps its mode, a new one has that of the umask") {
  const TemporaryDirectory directory;
  const Umask umask(022);
  write_out(directory / "new", "x");
  CHECK(mode_of(directory / "new") == 0644);
  for (const int mode : {0600, 0640, 0644, 0666, 0444, 0755}) {
    CAPTURE(mode);
    const fs::path file = directory / "old";
    write_bytes(file, "old");
    REQUIRE(::chmod(file.c_str(), static_cast<mode_t>(mode)) == 0);
    write_out(file, "new");
    CHECK(mode_of(file) == mode);
    CHECK(read_bytes(file) == "new");
    fs::remove(file);
  }
}

TEST_CASE("nobody can read what replaces a private file before it has its name") {
  const TemporaryDirectory directory;
  const Umask umask(0);
  const fs::path file = directory / "secret";
  write_bytes(file, "old");
  REQUIRE(::chmod(file.c_str(), 0600) == 0);
  OutputFile output("--output", file.string());
  output.write("new");
  for (const auto& entry : fs::directory_iterator(directory.path())) CHECK(mode_of(entry.path()) == 0600);
}

TEST_CASE("a file that is replaced stays its owner's where that can be, and no group gets what another had") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can give files away");
    return;
  }
  const TemporaryDirectory directory;
  const fs::path file = directory / "theirs";
  write_bytes(file, "old");
  REQUIRE(::chown(file.c_str(), kNobody, 12345) == 0);
  REQUIRE(::chmod(file.c_str(), 0664) == 0);
  write_out(file, "by root");
  CHECK(status_of(file).st_uid == kNobody);
  CHECK(status_of(file).st_gid == 12345);
  CHECK(mode_of(file) == 0664);

  REQUIRE(::chown(directory.path().c_str(), kNobody, kNobody) == 0);
  Child child([&] {
    if (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    write_out(file, "by nobody, who is not of the group");
    return true;
  });
  CHECK(child.succeeded());
  CHECK(status_of(file).st_gid == kNobody);
  CHECK(mode_of(file) == 0644);
}
