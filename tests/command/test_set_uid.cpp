// SPDX-License-Identifier: Apache-2.0
// A program that runs with more rights than whoever started it: the environment, which is theirs, decides nothing.
#include <doctest/doctest.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/command.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit::tests;
using nlohmann::json;

constexpr uid_t kOwner = 65534, kCaller = 65533;

// Why this machine cannot run a set-uid program as another user; empty when it can.
std::string why_not(const fs::path& program) {
  if (::geteuid() != 0) return "only root can make programs of other users";
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0) return "no program gets new rights here";
  struct statvfs mount {};
  if (::statvfs(program.c_str(), &mount) != 0 || (mount.f_flag & ST_NOSUID) != 0) return "set-uid has no effect here";
  return "";
}

// What `info --json` says when another user runs it in this environment. Null when that user may not run it.
json info(const fs::path& directory, const fs::path& program, const std::string& environment) {
  const fs::path out = directory / "out";
  const std::string line =
      "exec env " + environment + " '" + program.string() + "' info --json >'" + out.string() + "'";
  write_bytes(out, "");
  fs::permissions(out, fs::perms::others_write, fs::perm_options::add);
  Child child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kCaller, kCaller, kCaller) != 0 ||
        ::setresuid(kCaller, kCaller, kCaller) != 0)
      return false;
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    return false;
  });
  return child.succeeded() ? json::parse(read_bytes(out)) : json();
}

}  // namespace

TEST_CASE("a set-uid program obeys no variable of whoever runs it") {
  const TemporaryDirectory directory;
  fs::permissions(directory.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  const fs::path plain = directory / "plain", set_uid = directory / "set-uid";
  for (const fs::path& program : {plain, set_uid}) fs::copy_file(FLASHJIT_COMMAND, program);
  if (const std::string reason = why_not(set_uid); !reason.empty()) {
    MESSAGE("skipped: ", reason);
    return;
  }
  REQUIRE(::chown(set_uid.c_str(), kOwner, kOwner) == 0);
  REQUIRE(::chmod(set_uid.c_str(), 04755) == 0);

  const std::string environment =
      "CUDA_VISIBLE_DEVICES= FLASHJIT_NVRTC=/nowhere/named.so FLASHJIT_CACHE_DIR=/nowhere/cache FLASHJIT_POLICY=off "
      "FLASHJIT_TUNING=frozen FLASHJIT_LOG=loud FLASHJIT_TEMPLATE_DIR=/nowhere/templates XDG_CACHE_HOME=/nowhere/xdg "
      "LD_LIBRARY_PATH=/nowhere/lib CUDA_HOME=/nowhere/cuda VIRTUAL_ENV=/nowhere/venv HOME=/nowhere/home";
  const std::string fewer = "CUDA_VISIBLE_DEVICES= FLASHJIT_NVRTC=/nowhere/named.so FLASHJIT_CACHE_DIR=/nowhere/cache";
  const json obedient = info(directory.path(), plain, fewer);
  if (obedient.is_null()) {
    MESSAGE("skipped: another user cannot run the command where it was built");
    return;
  }
  CHECK(mentions(obedient.dump(), "/nowhere/named.so"));
  CHECK(mentions(obedient.dump(), "/nowhere/cache"));

  const json stubborn = info(directory.path(), set_uid, environment);
  REQUIRE_FALSE(stubborn.is_null());
  CHECK_FALSE(mentions(stubborn.dump(), "/nowhere"));
  CHECK(stubborn["policy"] == "compile");
  CHECK(stubborn["tuning"] == "recorded");
  CHECK(stubborn["cache"]["layers"].empty());
}
