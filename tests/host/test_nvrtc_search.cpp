// SPDX-License-Identifier: Apache-2.0
// Which files are taken for libnvrtc, and which are passed over: damaged ones, those of others, those that do not
// serve.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "runtime/kernels/loader_path.h"
#include "runtime/kernels/nvrtc.h"
#include "runtime/kernels/nvrtc_search.h"
#include "tests/support/error_code.h"
#include "tests/support/shared_library.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using namespace flashjit;
using namespace flashjit::tests;
using runtime::examine_library;
using runtime::locate_nvrtc;
using runtime::NvrtcReport;
using runtime::why_untrusted;

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

EngineOptions searching(const std::vector<fs::path>& directories) {
  EngineOptions options;
  for (const fs::path& directory : directories) options.nvrtc_directories.push_back(directory.string());
  return options;
}

// Of what was refused, the line about this file; empty when there is none.
std::string refusal_of(const std::vector<std::string>& refused, const fs::path& file) {
  const auto line = std::find_if(refused.begin(), refused.end(),
                                 [&](const std::string& each) { return each.rfind(file.string() + ": ", 0) == 0; });
  return line == refused.end() ? "" : *line;
}

// What an engine says of a file that it was told to take.
std::string problem_of(const fs::path& file) {
  EngineOptions options;
  options.nvrtc_path = file.string();
  const SystemInfo system = Engine(options).system();
  CHECK(system.nvrtc_version.empty());
  CHECK(system.nvrtc_path.empty());
  CHECK(system.nvrtc_problem.rfind("nvrtc: " + file.string() + " must be a usable libnvrtc: ", 0) == 0);
  return system.nvrtc_problem;
}

// The same with a field of its header changed.
template <typename Field>
std::string with(std::string library, std::size_t offset, Field value) {
  std::memcpy(library.data() + offset, &value, sizeof value);
  return library;
}

}  // namespace

TEST_CASE("a library that ends before what its headers promise is never opened") {
  const TemporaryDirectory directory;
  const std::string whole = shared_library();
  const fs::path file = put_library(directory.path(), whole);
  CHECK(examine_library(file).problem.empty());
  CHECK(examine_library(file).identity.size() == std::string("nvrtc-").size() + 16);
  for (const std::size_t left : {whole.size() - 1, whole.size() - 64, whole.size() / 2, whole.size() / 50,
                                 std::size_t{4096}, std::size_t{100}, sizeof(Elf64_Ehdr)}) {
    CAPTURE(left);
    put_library(directory.path(), whole.substr(0, left));
    CHECK(mentions(examine_library(file).problem, "is cut: it has " + std::to_string(left) + " bytes and must have "));
    CHECK(examine_library(file).identity.empty());
    CHECK(mentions(problem_of(file), "is cut"));
  }
}

TEST_CASE("what is no library of this machine is refused with what it is") {
  const TemporaryDirectory directory;
  const std::string whole = shared_library();
  const auto problem = [&](const std::string& bytes) { return problem_of(put_library(directory.path(), bytes)); };
  CHECK(mentions(problem(""), "is no ELF file"));
  CHECK(mentions(problem("INPUT(/usr/lib/libnvrtc.so.13)"), "is no ELF file"));
  CHECK(mentions(problem(whole.substr(0, 63)), "is no ELF file"));
  CHECK(mentions(problem(with(whole, EI_CLASS, ELFCLASS32)), "is for another kind of machine"));
  CHECK(mentions(problem(with(whole, EI_DATA, ELFDATA2MSB)), "is for another kind of machine"));
  CHECK(mentions(problem(with(whole, offsetof(Elf64_Ehdr, e_machine), Elf64_Half{EM_RISCV})),
                 "is for another kind of machine"));
  CHECK(mentions(problem(with(whole, offsetof(Elf64_Ehdr, e_type), Elf64_Half{ET_REL})), "is no shared library"));
  CHECK(mentions(problem(with(whole, offsetof(Elf64_Ehdr, e_phnum), Elf64_Half{0})), "is no shared library"));
  CHECK(mentions(problem(with(whole, offsetof(Elf64_Ehdr, e_phoff), Elf64_Off{~0ull})), "is cut"));
  CHECK(mentions(problem(with(whole, offsetof(Elf64_Ehdr, e_shoff), Elf64_Off{~0ull - 64})), "is cut"));
  CHECK(mentions(problem(whole), "lacks nvrtc"));
  fs::create_directory(directory / "directory");
  CHECK(mentions(problem_of(directory / "directory"), "is no regular file"));
  CHECK(mentions(problem_of(directory / "absent"), "No such file"));
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(mentions(problem_of(directory / "pipe"), "is no regular file"));
}

TEST_CASE("a named library that does not serve is an error which says why, and no other is taken") {
  const TemporaryDirectory directory;
  EngineOptions options;
  options.nvrtc_path = put_library(directory.path(), "text").string();
  Engine engine(options);
  std::string message;
  const Problem problem;
  const auto compile = [&] { engine.compile(problem, engine.default_variant(problem, "sm_90a"), "sm_90a"); };
  CHECK(code_of(compile, &message) == ErrorCode::no_compiler);
  CHECK(message == "nvrtc: " + options.nvrtc_path + " must be a usable libnvrtc: is no ELF file");
}

TEST_CASE("the search goes on after libraries that do not serve, and says so") {
  const TemporaryDirectory directory;
  const std::string whole = shared_library();
  const fs::path cut = put_library(directory / "cut", whole.substr(0, whole.size() / 2));
  const fs::path text = put_library(directory / "text", "text");
  const fs::path other = put_library(directory / "other", whole);
  EngineOptions options = searching({cut.parent_path(), text.parent_path(), other.parent_path()});
  std::vector<std::string> log;
  options.log = [&](LogLevel level, const std::string& line) {
    CHECK(level == LogLevel::warning);
    log.push_back(line);
  };
  const Engine engine(options);
  for (int i = 0; i < 2; ++i) {  // each is told once
    const SystemInfo system = engine.system();
    CHECK(mentions(refusal_of(system.nvrtc_refused, cut), "is cut"));
    CHECK(mentions(refusal_of(system.nvrtc_refused, text), "is no ELF file"));
    CHECK(mentions(refusal_of(system.nvrtc_refused, other), "lacks nvrtc"));
    CHECK(system.nvrtc_path != other.string());
    CHECK(log.size() == system.nvrtc_refused.size());
    if (!system.nvrtc_problem.empty())
      CHECK(mentions(system.nvrtc_problem, "; found and refused: " + system.nvrtc_refused.front()));
  }
  CHECK(log.front() == "NVRTC: " + refusal_of(engine.system().nvrtc_refused, cut));
}

TEST_CASE("a callback of the log may ask the engine about NVRTC") {
  const TemporaryDirectory directory;
  EngineOptions options = searching({directory.path()});
  put_library(directory.path(), "text");
  const Engine* asked = nullptr;
  std::size_t refused = 0;
  options.log = [&](LogLevel, const std::string&) { refused = asked->system().nvrtc_refused.size(); };
  const Engine engine(options);
  asked = &engine;
  const std::size_t all = engine.system().nvrtc_refused.size();
  CHECK(refused == all);
}

TEST_CASE("a library that anybody could have put there is refused") {
  const TemporaryDirectory directory;
  const fs::path named = directory / "lib", wheel = named / "python3.12/site-packages/nvidia/cu13/lib";
  const std::string whole = shared_library();
  const auto found = [&](const fs::path& file) {
    NvrtcReport report;
    const auto location = locate_nvrtc({"", {named.string() + "/"}}, report);
    return location && location->path == file;
  };
  const fs::path file = put_library(named, whole);
  CHECK(found(file));

  REQUIRE(::chmod(file.c_str(), 0666) == 0);
  CHECK_FALSE(found(file));
  CHECK(mentions(problem_of(file), file.string() + ": must not be writable by others, has mode 0666"));
  REQUIRE(::chmod(file.c_str(), 0664) == 0);  // the usual umask 002
  CHECK(found(file));

  for (const mode_t mode : {0777, 01777}) {
    REQUIRE(::chmod(named.c_str(), mode) == 0);
    CHECK_FALSE(found(file));
  }
  CHECK(mentions(problem_of(file), named.string() + ": must not be writable by others, has mode 1777"));

  fs::remove(file);
  put_library(wheel, whole);
  CHECK_FALSE(found(wheel / "libnvrtc.so.13"));  // the place that was named lies above
  REQUIRE(::chmod(named.c_str(), 0775) == 0);
  CHECK(found(wheel / "libnvrtc.so.13"));
  REQUIRE(::chmod((named / "python3.12").c_str(), 0777) == 0);
  CHECK_FALSE(found(wheel / "libnvrtc.so.13"));
}

TEST_CASE("a link into a directory of others is refused, and a link in one of theirs too") {
  const TemporaryDirectory directory;
  const fs::path own = directory / "own", open = directory / "open";
  const std::string whole = shared_library();
  put_library(open, whole);
  fs::create_directories(own);
  fs::create_symlink(open / "libnvrtc.so.13", own / "libnvrtc.so.13");
  CHECK(why_untrusted(own / "libnvrtc.so.13", own).empty());
  REQUIRE(::chmod(open.c_str(), 0777) == 0);
  CHECK(mentions(why_untrusted(own / "libnvrtc.so.13", own), open.string() + ": must not be writable"));

  const fs::path sound = put_library(directory / "sound", whole);
  fs::create_symlink(sound, open / "libnvrtc.so.12");
  CHECK(mentions(why_untrusted(open / "libnvrtc.so.12", open), open.string() + ": must not be writable"));
  // Under its own name it is as good as before.
  NvrtcReport report;
  const auto location = locate_nvrtc({"", {open.string(), sound.parent_path().string()}}, report);
  REQUIRE(location);
  CHECK(location->path == sound);
}

TEST_CASE("a library belongs to root, to this user or to the owner of its directory") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can give files away");
    return;
  }
  const TemporaryDirectory directory;
  const fs::path file = put_library(directory.path(), shared_library());
  REQUIRE(::chown(file.c_str(), 65534, 65534) == 0);
  CHECK(
      mentions(problem_of(file), "must belong to root, to this user or to the owner of its directory, belongs to uid"));
  REQUIRE(::chown(directory.path().c_str(), 65534, 65534) == 0);
  CHECK(why_untrusted(file, directory.path()).empty());
}

TEST_CASE("the loader's directories are those where it finds what it has loaded") {
  const std::vector<fs::path> directories = runtime::loader_directories();
  Dl_info info{};
  REQUIRE(::dladdr(reinterpret_cast<void*>(&std::fopen), &info) != 0);
  const fs::path library = fs::canonical(info.dli_fname);
  CHECK(std::any_of(directories.begin(), directories.end(), [&](const fs::path& directory) {
    std::error_code error;
    return fs::equivalent(directory, library.parent_path(), error);
  }));
}
