// SPDX-License-Identifier: Apache-2.0
#include "cli/io/output_file.h"

#include <fcntl.h>
#include <flashjit/error.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>
#include <utility>

namespace flashjit::cli {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kModeOfNew = 0666;  // less the umask
constexpr mode_t kPrivate = 0600;
constexpr std::time_t kDay = 24 * 3600;
constexpr std::string_view kSuffix = ".tmp";

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Random, because process ids repeat: a file that a killed process left must not be in the way.
std::string temporary_name(const fs::path& target) {
  std::random_device random;
  return fmt::format(".{}.{}.{:08x}{:08x}{}", target.filename().string(), ::getpid(), random(), random(), kSuffix);
}

// ".<target>.<pid>.<random>.tmp", or without the random part, as releases before had it.
bool is_temporary_name(std::string_view name, const fs::path& target) {
  const std::string start = '.' + target.filename().string() + '.';
  if (!name.starts_with(start) || !name.ends_with(kSuffix) || name.size() <= start.size() + kSuffix.size())
    return false;
  const std::string_view middle = name.substr(start.size(), name.size() - start.size() - kSuffix.size());
  const std::size_t dot = middle.find('.');
  const std::string_view pid = middle.substr(0, dot), random = dot == middle.npos ? "" : middle.substr(dot + 1);
  return !pid.empty() && pid.find_first_not_of("0123456789") == pid.npos &&
         (dot == middle.npos || random.size() == 16) && random.find_first_not_of("0123456789abcdef") == random.npos;
}

// Removes what killed processes of this user left beside the target, a day ago or earlier: nobody writes for that long.
void sweep(const fs::path& target) {
  std::error_code error;
  const fs::path parent = target.parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(parent.empty() ? "." : parent, error)) {
    if (!is_temporary_name(entry.path().filename().string(), target)) continue;
    struct stat status {};
    if (::lstat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (status.st_uid == ::geteuid() && status.st_mtime < std::time(nullptr) - kDay) ::unlink(entry.path().c_str());
  }
}

// Gives the file owner, group and mode of the one that it will replace, as far as this process may.
bool take_after(int descriptor, const struct stat& replaced, mode_t denied) {
  constexpr mode_t kGroup = 070, kOthers = 07, kAll = 0777;
  constexpr auto kSameOwner = static_cast<uid_t>(-1);
  mode_t mode = replaced.st_mode & kAll;
  if (::fchown(descriptor, replaced.st_uid, replaced.st_gid) != 0 &&
      ::fchown(descriptor, kSameOwner, replaced.st_gid) != 0) {
    // Another group than before must not get more rights than anybody.
    mode &= ~kGroup | ((mode & kOthers) << 3);
  }
  return ::fchmod(descriptor, mode & ~denied) == 0;
}

}  // namespace

OutputFile::OutputFile(std::string option, std::string path, mode_t denied)
    : option_(std::move(option)), path_(std::move(path)), denied_(denied) {
  if (path_.empty()) throw Error(ErrorCode::invalid_argument, option_ + ": must be the path of a file, was empty");
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(path_, error);
  target_ = error ? path_ : resolved.string();
  // Replacing a device such as /dev/null by a file would harm the whole machine.
  const auto status = fs::status(target_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} must be a regular file or not exist, was something else", option_, path_));
  }
  const fs::path parent = fs::absolute(target_, error).parent_path();
  if (::access(parent.c_str(), W_OK | X_OK) != 0) fail("cannot be written");
  if (!fs::is_directory(parent, error)) {
    errno = ENOTDIR;
    fail("cannot be written");
  }
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

int OutputFile::create(mode_t mode) {
  const fs::path target(target_);
  int descriptor = -1;
  do {
    temporary_ = (target.parent_path() / temporary_name(target)).string();
    descriptor = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EEXIST);
  if (descriptor >= 0) return descriptor;
  temporary_.clear();
  fail("cannot be created");
}

void OutputFile::write(std::string_view bytes) {
  sweep(target_);
  struct stat replaced {};
  const bool replaces = ::stat(target_.c_str(), &replaced) == 0;
  const int descriptor = create(replaces ? kPrivate : kModeOfNew & ~denied_);
  const bool written = write_all(descriptor, bytes) && (!replaces || take_after(descriptor, replaced, denied_));
  const int write_error = errno;
  const bool closed = ::close(descriptor) == 0;
  if (!written) errno = write_error;
  if (!written || !closed) fail("cannot be written");
}

void OutputFile::publish() {
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
  temporary_.clear();
}

void OutputFile::fail(const std::string& what) const {
  throw Error(ErrorCode::io, fmt::format("{}: {} {}: {}", option_, path_, what, std::strerror(errno)));
}

}  // namespace flashjit::cli
