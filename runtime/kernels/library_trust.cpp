// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cache/directory.h"
#include "runtime/kernels/nvrtc_search.h"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

// A group is no stranger here, as it is for the cache: under the usual umask 002 whatever a user installs may be
// written to by the user's own group, and distributions give directories of libraries to a group of administrators.
constexpr mode_t kStrangers = S_IWOTH;

struct Inspected {
  struct stat status {};
  std::string problem;
};

Inspected inspect(const fs::path& path) {
  Inspected inspected;
  if (::stat(path.c_str(), &inspected.status) != 0)
    inspected.problem = fmt::format("{}: {}", path.string(), std::generic_category().message(errno));
  else
    inspected.problem = cache::why_writable(path, inspected.status.st_mode, kStrangers);
  return inspected;
}

// Of a directory and those above it, as far as this one.
std::string why_writable_between(fs::path directory, const fs::path& from) {
  for (;; directory = directory.parent_path()) {
    if (std::string problem = inspect(directory).problem; !problem.empty()) return problem;
    if (directory == from || !directory.has_relative_path()) return {};
  }
}

}  // namespace

std::string why_untrusted(const fs::path& file, const fs::path& from) {
  if (std::string problem = why_writable_between(file.parent_path(), from); !problem.empty()) return problem;
  std::error_code error;
  const fs::path real = fs::canonical(file, error);  // a link leads elsewhere
  if (error) return fmt::format("{}: {}", file.string(), error.message());
  const Inspected directory = inspect(real.parent_path()), library = inspect(real);
  if (!directory.problem.empty()) return directory.problem;
  if (!library.problem.empty()) return library.problem;
  const uid_t owner = library.status.st_uid;
  if (owner == 0 || owner == ::geteuid() || owner == directory.status.st_uid) return {};
  return fmt::format("{}: must belong to root, to this user or to the owner of its directory, belongs to uid {}",
                     real.string(), owner);
}

}  // namespace flashjit::runtime
