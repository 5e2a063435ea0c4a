// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/nvrtc_search.h"

#include <dlfcn.h>
#include <link.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

#include "runtime/kernels/loader_path.h"
#include "runtime/support/path_list.h"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

constexpr const char* kLoaderDirectories[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64", "/usr/lib",
};

// Where NVIDIA's wheels put the library, below a site-packages directory, newest first.
constexpr const char* kWheelDirectories[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

class Finder {
 public:
  explicit Finder(NvrtcReport& report) : report_(report) {}

  // from: the directory that was named or is usual, at or above the file.
  bool try_file(const fs::path& file, const fs::path& from) {
    std::error_code error;
    const fs::path path = fs::canonical(file, error);
    if (error || is_refused(file) || is_refused(path)) return false;
    // By the name that it was found under: under another one the same file may be reached safely.
    if (const std::string problem = why_untrusted(file, from); !problem.empty()) return refuse(file, problem);
    LibraryFile library = examine_library(path);
    if (!library.problem.empty()) return refuse(path, library.problem);
    found_ = NvrtcLocation{path, std::move(library.identity)};
    return true;
  }

  bool try_directory(const fs::path& directory, const fs::path& from) {
    note(directory.string());
    return try_names(directory, from);
  }
  bool try_directory(const fs::path& directory) { return try_directory(directory, directory); }

  bool try_names(const fs::path& directory, const fs::path& from) {
    return std::any_of(std::begin(kNames), std::end(kNames),
                       [&](const char* name) { return try_file(directory / name, from); });
  }

  // Below a parent, every directory whose name begins with the prefix and holds one of the tails; later names first,
  // so that of two versions the newer one is taken.
  bool try_matching(const fs::path& parent, const std::string& prefix, std::initializer_list<const char*> tails) {
    std::error_code error;
    std::vector<fs::path> matches;
    for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
      if (it->path().filename().string().starts_with(prefix)) matches.push_back(it->path());
    }
    // By version: cuda-13.0 before cuda-9.2, python3.13 before python3.9.
    std::sort(matches.begin(), matches.end(), [](const fs::path& a, const fs::path& b) {
      return strverscmp(a.filename().c_str(), b.filename().c_str()) > 0;
    });
    for (const fs::path& match : matches) {
      for (const char* tail : tails) {
        if (fs::is_directory(match / tail, error) && try_directory(match / tail, parent)) return true;
      }
    }
    return false;
  }

  bool try_wheels(const fs::path& lib) {
    for (const char* wheel : kWheelDirectories) {
      const std::string site = std::string("site-packages/") + wheel;
      const std::string dist = std::string("dist-packages/") + wheel;
      if (try_matching(lib, "python3", {site.c_str(), dist.c_str()})) return true;
    }
    return false;
  }

  // What the process has open already, without opening anything.
  bool try_open_library(const char* name) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) return false;
    const link_map* map = nullptr;
    const bool found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map &&
                       try_file(map->l_name, fs::path(map->l_name).parent_path());
    dlclose(library);
    return found;
  }

  bool refuse(const fs::path& path, const std::string& reason) {
    report_.refused.push_back({path, reason});
    return false;
  }
  void note(std::string place) { report_.places.push_back(std::move(place)); }
  std::optional<NvrtcLocation> take() { return std::move(found_); }

 private:
  bool is_refused(const fs::path& path) const {
    return std::any_of(report_.refused.begin(), report_.refused.end(),
                       [&](const RefusedLibrary& refused) { return refused.path == path; });
  }

  NvrtcReport& report_;
  std::optional<NvrtcLocation> found_;
};

// From the user database: the environment is not read here.
fs::path home_directory() {
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* result = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &result) != 0 || !result) return {};
  return result->pw_dir;
}

bool search_usual_places(Finder& finder) {
  for (const char* directory : kLoaderDirectories) {
    if (finder.try_directory(directory)) return true;
  }
  if (finder.try_directory("/usr/local/cuda/lib64") || finder.try_matching("/usr/local", "cuda-", {"lib64"}))
    return true;
  for (const fs::path& lib : {home_directory() / ".local/lib", fs::path("/usr/local/lib"), fs::path("/usr/lib")}) {
    finder.note(lib.string() + "/python3*: NVIDIA's wheels");
    if (finder.try_wheels(lib)) return true;
  }
  finder.note("the loader's path");
  for (const fs::path& directory : loader_directories()) {
    if (finder.try_names(directory, directory)) return true;
  }
  return false;
}

// That file and no other: here it is an answer, too, that there is none.
bool search_named(const fs::path& file, Finder& finder) {
  finder.note(file.string());
  std::error_code error;
  if (const fs::path found = fs::canonical(file, error); error) return finder.refuse(file, error.message());
  return finder.try_file(absolute_path(file), absolute_path(file).parent_path());
}

bool search(const NvrtcSearch& search, Finder& finder) {
  if (!search.path.empty()) return search_named(search.path, finder);
  for (const std::string& named : search.directories) {
    const fs::path directory = absolute_path(fs::path(named) / kNames[0]).parent_path();  // without a slash at its end
    if (finder.try_directory(directory)) return true;
    if (finder.try_wheels(directory)) return true;
  }
  // A host program that has NVRTC open already, PyTorch for one, is best served by the same copy.
  for (const char* name : kNames) {
    if (finder.try_open_library(name)) return true;
  }
  return search_usual_places(finder);
}

}  // namespace

std::string to_string(const RefusedLibrary& refused) { return refused.path.string() + ": " + refused.reason; }

std::optional<NvrtcLocation> locate_nvrtc(const NvrtcSearch& places, NvrtcReport& report) {
  report.places.clear();
  Finder finder(report);
  search(places, finder);
  return finder.take();
}

}  // namespace flashjit::runtime
