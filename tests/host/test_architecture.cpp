// SPDX-License-Identifier: Apache-2.0
// The arrows between the folders (docs/architecture.md), read off the #include lines of the source tree.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "generator/source.h"

namespace {

namespace fs = std::filesystem;

struct Folder {
  std::set<std::string> quoted;   // first components that #include "..." may have
  bool may_include_cuda = false;  // cuda.h, nvrtc.h
  bool only_standard = false;     // #include <...>: only the standard library, and DLPack for the C interface
};

const std::map<std::string, Folder>& folders() {
  static const std::map<std::string, Folder> rules = {
      {"include", {.quoted = {"flashjit"}, .only_standard = true}},
      {"generator", {.quoted = {"generator", "templates", "flashjit"}}},
      {"cache", {.quoted = {"cache", "flashjit"}}},
      {"emulator", {.quoted = {"emulator", "flashjit"}}},
      {"runtime",
       {.quoted = {"runtime", "generator", "cache", "flashjit", "flashjit_from_c.h"}, .may_include_cuda = true}},
      {"distributed", {.quoted = {"distributed", "flashjit", "flashjit_distributed.h", "flashjit_from_c.h"}}},
      {"cli", {.quoted = {"cli", "flashjit"}}},
      {"cmake", {}},
      {"bench", {.quoted = {"bench", "flashjit"}}},
      {"examples", {.quoted = {"flashjit"}, .may_include_cuda = true}},
      {"python", {.quoted = {"python", "flashjit", "flashjit_distributed.h"}}},
  };
  return rules;
}

// Of folders with rooms, which rooms the files of a room may include from, beside their own. What stands beside the
// rooms may include from all.
const std::map<std::string, std::map<std::string, std::set<std::string>>>& rooms() {
  static const std::map<std::string, std::map<std::string, std::set<std::string>>> rules = {
      {"runtime",
       {{"support", {}},
        {"cuda", {"support"}},
        {"call", {"support"}},
        {"kernels", {"support"}},
        {"reference", {"call", "support"}},
        {"tuning", {"kernels", "reference", "support"}},
        {"backends", {"tuning", "kernels", "call", "cuda", "support"}},
        {"api", {"backends", "tuning", "kernels", "reference", "call", "cuda", "support"}}}},
      {"cli",
       {{"io", {}},
        {"cache", {"io"}},
        {"commands", {"cache", "io"}},
        {"tune", {"commands", "io"}},
        {"bench", {"commands", "io"}},
        {"verify", {"commands", "io"}}}},
      {"emulator",
       {{"ptx", {}},
        {"memory", {"ptx"}},
        {"machine", {"memory", "ptx"}},
        {"operations", {"machine", "memory", "ptx"}}}},
  };
  return rules;
}

// Empty when a file may have this #include line as far as rooms go; else why not. Paths begin with the folder.
std::string room_violation(const std::string& file, const std::string& line) {
  static const std::regex path(R"re(^([a-z]+)/([a-z]+)/[^/]+$)re"), include(R"re(^\s*#\s*include\s*"([^"]+)")re");
  std::smatch from, header, to;
  if (!std::regex_match(file, from, path) || rooms().count(from[1]) == 0) return "";
  const auto& of_folder = rooms().at(from[1]);
  const auto rule = of_folder.find(from[2]);
  if (rule == of_folder.end()) return file + ": its room has no rule in tests/host/test_architecture.cpp";
  if (!std::regex_search(line, header, include)) return "";
  const std::string included = header[1];
  if (!std::regex_match(included, to, path) || to[1] != from[1] || to[2] == from[2]) return "";
  return rule->second.count(to[2]) != 0 ? "" : file + " must not include \"" + included + "\"";
}

bool is_cuda_header(const std::string& header) {
  return std::regex_match(header, std::regex("(cuda|nccl|nvrtc|nvJitLink|device_launch)[A-Za-z_]*\\.h|cuda/.*"));
}

// Empty when a file of this folder may have this #include line; else why not.
std::string violation(const std::string& folder, const std::string& line) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
  std::smatch match;
  if (!std::regex_search(line, match, pattern)) return "";
  const bool quoted = match[1] == "\"";
  const std::string header = match[2];
  const auto rule = folders().find(folder);
  if (rule == folders().end()) return folder + "/ has no rule in tests/host/test_architecture.cpp";
  const Folder& allowed = rule->second;
  if (is_cuda_header(header)) return allowed.may_include_cuda ? "" : folder + " must not include " + header;
  const std::string first = header == "flashjit.h" ? "flashjit" : header.substr(0, header.find('/'));
  if (quoted) return allowed.quoted.count(first) != 0 ? "" : folder + " must not include \"" + header + "\"";
  if (folders().count(first) != 0) return folder + " must write \"" + header + "\" with quotes";
  static const std::set<std::string> of_c_interface = {"dlpack/dlpack.h", "stddef.h", "stdint.h"};
  const bool standard = header.find_first_of("/.") == std::string::npos || of_c_interface.count(header) != 0;
  if (allowed.only_standard && !standard) return folder + " must include only the standard library, not " + header;
  return "";
}

std::string read(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh"};
  return extensions.count(path.extension().string()) != 0;
}

// The C++ sources below root, relative to it, without templates, tests and what is not ours.
std::vector<fs::path> host_sources(const fs::path& root) {
  static const std::set<std::string> elsewhere = {"build", "templates", "tests"};
  std::vector<fs::path> found;
  for (const fs::directory_entry& top : fs::directory_iterator(root)) {
    const std::string name = top.path().filename().string();
    if (!top.is_directory() || name.front() == '.' || elsewhere.count(name) != 0) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(top.path())) {
      const fs::path path = fs::relative(entry.path(), root);
      if (entry.is_regular_file() && is_source(path) && path.parent_path().filename() != "tests") found.push_back(path);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::map<std::string, std::string> templates_on_disk() {
  const fs::path root = fs::path(FLASHJIT_SOURCE_DIR) / "templates";
  std::map<std::string, std::string> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (is_source(entry.path())) found[fs::relative(entry.path(), root).string()] = read(entry.path());
  }
  return found;
}

}  // namespace

TEST_CASE("the rules for #include lines tell right from wrong") {
  CHECK(violation("runtime", "#include \"cache/entry.h\"").empty());
  CHECK(violation("runtime", "#include <cuda.h>").empty());
  CHECK(violation("runtime", "#include \"flashjit/emulator.h\"").empty());
  CHECK(violation("emulator", "#include \"emulator/machine/warp.h\"").empty());
  CHECK(violation("generator", "#include \"flashjit/problem.h\"").empty());
  CHECK(violation("cli", "#include <CLI/CLI.hpp>").empty());
  CHECK(violation("include", "#include <vector>").empty());
  CHECK(violation("examples", "#include <cuda_runtime.h>").empty());
  CHECK(violation("include", "#include <dlpack/dlpack.h>").empty());
  CHECK(violation("runtime", "#include \"flashjit.h\"").empty());
  CHECK(violation("cache", "int x;").empty());
  CHECK(violation("distributed", "#include \"flashjit/engine.h\"").empty());
  CHECK(violation("distributed", "#include \"flashjit_distributed.h\"").empty());
  CHECK(violation("runtime", "#include \"flashjit_from_c.h\"").empty());
  CHECK_FALSE(violation("runtime", "#include \"flashjit_distributed.h\"").empty());
  CHECK_FALSE(violation("distributed", "#include \"runtime/support/reject.h\"").empty());
  CHECK_FALSE(violation("distributed", "#include <nccl.h>").empty());
  CHECK_FALSE(violation("runtime", "#include \"distributed/reject.h\"").empty());
  CHECK_FALSE(violation("cache", "#include \"runtime/cuda/driver.h\"").empty());
  CHECK_FALSE(violation("cache", "  # include <cuda.h>").empty());
  CHECK_FALSE(violation("generator", "#include <nvrtc.h>").empty());
  CHECK_FALSE(violation("runtime", "#include \"emulator/machine/warp.h\"").empty());
  CHECK_FALSE(violation("emulator", "#include \"generator/plan.h\"").empty());
  CHECK_FALSE(violation("emulator", "#include <cuda.h>").empty());
  CHECK_FALSE(violation("python", "#include <cuda.h>").empty());
  CHECK_FALSE(violation("python", "#include \"runtime/api/dlpack.h\"").empty());
  CHECK_FALSE(violation("generator", "#include \"../cache/entry.h\"").empty());
  CHECK_FALSE(violation("cli", "#include \"generator/source.h\"").empty());
  CHECK_FALSE(violation("cli", "#include <runtime/cuda/driver.h>").empty());
  CHECK_FALSE(violation("include", "#include <fmt/format.h>").empty());
  CHECK_FALSE(violation("include", "#include <nlohmann_json.hpp>").empty());
  CHECK_FALSE(violation("somewhere_new", "#include <vector>").empty());
}

TEST_CASE("the rules for rooms tell right from wrong") {
  CHECK(room_violation("runtime/api/engine.cpp", "#include \"runtime/call/validate.h\"").empty());
  CHECK(room_violation("runtime/call/masks.cpp", "#include \"runtime/call/masks.h\"").empty());
  CHECK(room_violation("runtime/call/masks.cpp", "#include \"flashjit/error.h\"").empty());
  CHECK(room_violation("cli/main.cpp", "#include \"cli/bench/bench.h\"").empty());
  CHECK_FALSE(room_violation("runtime/call/masks.cpp", "#include \"runtime/api/engine_impl.h\"").empty());
  CHECK_FALSE(room_violation("emulator/ptx/lexer.cpp", "  # include \"emulator/machine/warp.h\"").empty());
  CHECK_FALSE(room_violation("cli/attic/old.cpp", "#include <vector>").empty());
}

TEST_CASE("folders include only what the architecture allows") {
  const fs::path root = FLASHJIT_SOURCE_DIR;
  const std::vector<fs::path> sources = host_sources(root);
  REQUIRE(sources.size() > 20);
  for (const fs::path& source : sources) {
    std::istringstream text(read(root / source));
    for (std::string line; std::getline(text, line);) {
      CHECK_MESSAGE(violation(source.begin()->string(), line).empty(), source.string(), ": ",
                    violation(source.begin()->string(), line));
      CHECK_MESSAGE(room_violation(source.generic_string(), line).empty(),
                    room_violation(source.generic_string(), line));
    }
  }
}

TEST_CASE("templates include only templates and know neither the toolkit nor feature macros") {
  const std::map<std::string, std::string> templates = templates_on_disk();
  REQUIRE(templates.size() > 5);
  const std::regex pattern(R"re(#\s*include\s*([^\n]*))re");
  for (const auto& [path, text] : templates) {
    for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
      const std::string header = (*match)[1];
      const bool known = header.size() > 2 && templates.count(header.substr(1, header.size() - 2)) != 0;
      CHECK_MESSAGE((known && header.front() == '"'), path, " must not include ", header);
    }
    CHECK_MESSAGE(text.find("__CUDA_ARCH__") == std::string::npos, path);
  }
}

TEST_CASE("the library embeds every template as it is on disk, but for lines that are comments") {
  const auto is_comment = [](std::string_view line) {
    const std::size_t begin = line.find_first_not_of(' ');
    return begin != line.npos && line.substr(begin).starts_with("//");
  };
  const auto templates = templates_on_disk();
  const auto& embedded = flashjit::generator::embedded_templates().files();
  REQUIRE(embedded.size() == templates.size());
  for (const auto& [path, text] : templates) {
    REQUIRE_MESSAGE(embedded.count(path) == 1, path);
    std::istringstream is(embedded.find(path)->second), must_be(text);
    for (std::string line, wanted; std::getline(must_be, wanted);) {
      REQUIRE_MESSAGE(std::getline(is, line), path);
      CHECK_MESSAGE(line == (is_comment(wanted) ? "" : wanted), path);
    }
    CHECK_MESSAGE(is.peek() == std::istringstream::traits_type::eof(), path);
  }
}

TEST_CASE("the environment is read in one file, and not for those who run a program with more rights than theirs") {
  const fs::path root = FLASHJIT_SOURCE_DIR;
  std::vector<std::string> readers;
  for (const fs::path& source : host_sources(root)) {
    const std::string text = read(root / source);
    if (text.find("getenv(") != std::string::npos) readers.push_back(source.string());
    CHECK_MESSAGE(!std::regex_search(text, std::regex("\\bgetenv\\(")), source.string(), " must call secure_getenv");
  }
  REQUIRE(readers.size() == 1);
  CHECK(readers.front() == "runtime/api/environment.cpp");
}

TEST_CASE("the command writes to its standard streams in one file, which knows what a failure means") {
  const fs::path root = FLASHJIT_SOURCE_DIR;
  for (const fs::path& source : host_sources(root)) {
    if (*source.begin() != "cli") continue;
    const std::string text = read(root / source);
    for (const char* writer : {"fmt::print(", "printf(stderr", "std::printf(", "std::puts(", "std::cout", "std::cerr"})
      CHECK_MESSAGE(text.find(writer) == std::string::npos, source.string(), " must use cli/io/streams.h, not ",
                    writer);
  }
}
