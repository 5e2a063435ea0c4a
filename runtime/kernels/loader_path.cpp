// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/loader_path.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

// --- /etc/ld.so.cache, as ldconfig of glibc 2.2 and later writes it: a header, entries, text -------------------------

constexpr std::string_view kLoaderMagic = "glibc-ld.so.cache1.1";  // older ldconfigs have another table before it

struct LoaderHeader {
  char magic[20];
  std::uint32_t entries, text_bytes, reserved[5];
};
struct LoaderEntry {
  std::int32_t flags;
  std::uint32_t name, path;  // offsets of text from the header
  std::uint32_t os_version;
  std::uint64_t hardware;
};
static_assert(sizeof(LoaderHeader) == 48 && sizeof(LoaderEntry) == 24);

std::vector<fs::path> directories_of_cache() {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const std::size_t begin = content.find(kLoaderMagic);
  if (begin == std::string::npos) return {};
  const std::string_view cache = std::string_view(content).substr(begin);
  LoaderHeader header;
  if (cache.size() < sizeof(header)) return {};
  std::memcpy(&header, cache.data(), sizeof(header));
  std::vector<fs::path> directories;
  for (std::size_t i = 0; i < header.entries; ++i) {
    LoaderEntry entry;
    const std::size_t at = sizeof(header) + i * sizeof(entry);
    if (cache.size() - sizeof(entry) < at) break;
    std::memcpy(&entry, cache.data() + at, sizeof(entry));
    if (entry.path >= cache.size()) continue;
    const std::string_view path = cache.substr(entry.path, cache.find('\0', entry.path) - entry.path);
    directories.push_back(fs::path(path).parent_path());
  }
  return directories;
}

// --- LD_LIBRARY_PATH as it was when the process began, the path inside the program, the usual directories
// -------------

std::vector<fs::path> directories_of_process() {
  Dl_info self;
  void* map = nullptr;  // a link_map, which is what the loader gives as a handle
  Dl_serinfo size;
  if (::dladdr1(reinterpret_cast<void*>(&loader_directories), &self, &map, RTLD_DL_LINKMAP) == 0 ||
      ::dlinfo(map, RTLD_DI_SERINFOSIZE, &size) != 0) {
    return {};
  }
  std::vector<Dl_serinfo> memory(size.dls_size / sizeof(Dl_serinfo) + 1);
  Dl_serinfo* const info = memory.data();
  *info = size;
  if (::dlinfo(map, RTLD_DI_SERINFO, info) != 0) return {};
  std::vector<fs::path> directories;
  for (unsigned i = 0; i < info->dls_cnt; ++i) directories.emplace_back(info->dls_serpath[i].dls_name);
  return directories;
}

}  // namespace

std::vector<fs::path> loader_directories() {
  std::vector<fs::path> directories = directories_of_process();
  for (fs::path& directory : directories_of_cache()) {
    if (std::find(directories.begin(), directories.end(), directory) == directories.end())
      directories.push_back(std::move(directory));
  }
  return directories;
}

}  // namespace flashjit::runtime
