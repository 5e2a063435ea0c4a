// SPDX-License-Identifier: Apache-2.0
#include "cache/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <random>

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

// Runs a system call again when a signal interrupted it.
template <typename Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, mode_t mode = 0)
      : value_(retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); })) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool is_open() const { return value_ >= 0; }
  int value() const { return value_; }
  // False when the file system reports only now that it lost something, as NFS does. The descriptor is gone either way.
  bool close() {
    if (!is_open()) return true;
    const int result = ::close(value_);
    value_ = -1;
    return result == 0;
  }

 private:
  int value_;
};

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry([&] { return ::write(descriptor, bytes.data(), bytes.size()); });
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

bool read_all(int descriptor, std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = retry([&] { return ::read(descriptor, bytes.data() + done, bytes.size() - done); });
    if (count < 0) return false;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return true;
}

fs::path temporary_name(const fs::path& file) {
  std::random_device random;
  return fmt::format("{}.{}.{:08x}{:08x}.tmp", file.string(), ::getpid(), random(), random());
}

// Makes the new name survive a power cut. Not every file system can, and the entry is no worse for it.
void sync_directory(const fs::path& directory) {
  const Descriptor descriptor(directory, O_RDONLY | O_DIRECTORY);
  if (descriptor.is_open()) ::fsync(descriptor.value());
}

// Contents first, then the name: after a crash the name stands for all of the bytes or for none.
bool write_and_rename(Descriptor& descriptor, const fs::path& temporary, const fs::path& file, std::string_view bytes) {
  return write_all(descriptor.value(), bytes) && retry([&] { return ::fsync(descriptor.value()); }) == 0 &&
         descriptor.close() && ::rename(temporary.c_str(), file.c_str()) == 0;
}

std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

}  // namespace

FileContent read_file(const fs::path& file, std::size_t limit) {
  using State = FileContent::State;
  // Without O_NONBLOCK a FIFO of that name would hold us up.
  const Descriptor descriptor(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!descriptor.is_open()) return {errno == ELOOP ? State::strange : State::absent, {}};
  struct stat status {};
  if (::fstat(descriptor.value(), &status) != 0) return {};
  if (!S_ISREG(status.st_mode) || static_cast<std::uintmax_t>(status.st_size) > limit) return {State::strange, {}};
  FileContent content{State::whole, std::string(static_cast<std::size_t>(status.st_size), '\0')};
  if (!read_all(descriptor.value(), content.bytes)) return {};
  return content;
}

bool write_file(const fs::path& file, std::string_view bytes) {
  const fs::path temporary = temporary_name(file);
  Descriptor descriptor(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, kFileMode);
  if (!descriptor.is_open()) return false;
  if (!write_and_rename(descriptor, temporary, file, bytes)) {
    ::unlink(temporary.c_str());
    return false;
  }
  sync_directory(file.parent_path());
  return true;
}

bool make_directories(const fs::path& directory) {
  const auto status = status_of(directory);
  if (status) return S_ISDIR(status->st_mode);
  if (directory.has_relative_path() && directory.has_parent_path() && !make_directories(directory.parent_path())) {
    return false;
  }
  return ::mkdir(directory.c_str(), kDirectoryMode) == 0 || errno == EEXIST;
}

bool is_private(const fs::path& directory) {
  const auto status = status_of(directory);
  return status && status->st_uid == ::geteuid() && (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool anybody_may_write(const fs::path& directory) {
  const auto status = status_of(directory);
  return status && (status->st_mode & S_IWOTH) != 0;
}

}  // namespace flashjit::cache
