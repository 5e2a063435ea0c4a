// SPDX-License-Identifier: Apache-2.0
#include "runtime/nvrtc_search.h"

#include <dlfcn.h>
#include <link.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

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
  explicit Finder(std::string& searched) : searched_(searched) {}

  bool try_file(const fs::path& file) {
    std::error_code error;
    const fs::path path = fs::canonical(file, error);
    if (error) return false;
    std::string identity = library_identity(path);
    if (identity.empty()) return false;
    found_ = NvrtcLocation{path, std::move(identity)};
    return true;
  }

  bool try_directory(const fs::path& directory) {
    note(directory.string());
    return std::any_of(std::begin(kNames), std::end(kNames),
                       [&](const char* name) { return try_file(directory / name); });
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
        if (try_existing(match / tail)) return true;
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

  // Asks the loader, without opening anything (RTLD_NOLOAD) or as the last way out.
  bool try_loader(const char* name, int flags) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL | flags);
    if (!library) return false;
    const link_map* map = nullptr;
    const bool found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && try_file(map->l_name);
    dlclose(library);
    return found;
  }

  void note(const std::string& place) { searched_ += searched_.empty() ? place : "\n" + place; }
  std::optional<NvrtcLocation> take() { return std::move(found_); }

 private:
  bool try_existing(const fs::path& directory) {
    std::error_code error;
    return fs::is_directory(directory, error) && try_directory(directory);
  }

  std::string& searched_;
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
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* name) { return finder.try_loader(name, 0); });
}

bool search(const NvrtcSearch& search, Finder& finder) {
  if (!search.path.empty()) {
    finder.note(search.path);
    return finder.try_file(search.path);
  }
  for (const std::string& directory : search.directories) {
    if (finder.try_directory(directory)) return true;
    if (finder.try_wheels(directory)) return true;
  }
  // A host program that has NVRTC open already, PyTorch for one, is best served by the same copy.
  for (const char* name : kNames) {
    if (finder.try_loader(name, RTLD_NOLOAD)) return true;
  }
  return search_usual_places(finder);
}

}  // namespace

std::optional<NvrtcLocation> locate_nvrtc(const NvrtcSearch& places, std::string& searched) {
  Finder finder(searched);
  search(places, finder);
  return finder.take();
}

}  // namespace flashjit::runtime
