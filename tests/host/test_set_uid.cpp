// SPDX-License-Identifier: Apache-2.0
// A program that runs with more rights than whoever started it: the environment, which is theirs, decides nothing.
#include <doctest/doctest.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/cache_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit::tests;

constexpr uid_t kOwner = 65534, kCaller = 65533;
constexpr const char* kEnvironment =
    "FLASHJIT_POLICY=off FLASHJIT_CACHE_DIR=/mine/cache FLASHJIT_NVRTC=/mine/nvrtc.so FLASHJIT_LOG=debug "
    "FLASHJIT_TEMPLATE_DIR=/mine/templates FLASHJIT_DEVICE=emulate FLASHJIT_SYSTEM_CACHE=/mine/system "
    "FLASHJIT_BUNDLES=/mine/bundle XDG_CACHE_HOME=/mine/xdg HOME=/mine LD_LIBRARY_PATH=/mine/lib CUDA_HOME=/mine/cuda "
    "CUDA_PATH=/mine/cuda VIRTUAL_ENV=/mine/venv CONDA_PREFIX=/mine/conda";

// Why this machine cannot run a set-uid program as another user; empty when it can.
std::string why_not(const fs::path& program) {
  if (::geteuid() != 0) return "only root can make programs of other users";
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0) return "no program gets new rights here";
  struct statvfs mount {};
  if (::statvfs(program.c_str(), &mount) != 0 || (mount.f_flag & ST_NOSUID) != 0) return "set-uid has no effect here";
  return "";
}

// What the program prints when another user runs it; nothing when that user may not.
std::optional<std::string> output(const fs::path& directory, const fs::path& program) {
  const fs::path out = directory / "out";
  const std::string line =
      "exec env " + std::string(kEnvironment) + " '" + program.string() + "' >'" + out.string() + "'";
  write_bytes(out, "");
  fs::permissions(out, fs::perms::others_write, fs::perm_options::add);
  Child child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kCaller, kCaller, kCaller) != 0 ||
        ::setresuid(kCaller, kCaller, kCaller) != 0)
      return false;
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    return false;
  });
  return child.succeeded() ? std::optional(read_bytes(out)) : std::nullopt;
}

}  // namespace

TEST_CASE("a set-uid program obeys no variable of whoever runs it") {
  const TemporaryDirectory directory;
  fs::permissions(directory.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  const fs::path plain = directory / "plain", set_uid = directory / "set-uid";
  for (const fs::path& program : {plain, set_uid}) fs::copy_file(FLASHJIT_PRINT_OPTIONS, program);
  if (const std::string reason = why_not(set_uid); !reason.empty()) {
    MESSAGE("skipped: ", reason);
    return;
  }
  REQUIRE(::chown(set_uid.c_str(), kOwner, kOwner) == 0);
  REQUIRE(::chmod(set_uid.c_str(), 04755) == 0);
  const auto obedient = output(directory.path(), plain);
  if (!obedient) {
    MESSAGE("skipped: another user cannot run programs where this one was built");
    return;
  }
  CHECK(*obedient ==
        "off\n/mine/cache\n/mine/nvrtc.so\n/mine/templates\nsm_90a\n/mine/lib\n/mine/cuda/lib64\n/mine/cuda/lib64\n"
        "/mine/venv/lib\n/mine/conda/lib\n/mine/system\n/mine/bundle\na log\n");
  const auto stubborn = output(directory.path(), set_uid);
  REQUIRE(stubborn);
  CHECK(*stubborn == "compile\n\n\n\n\n");
}
