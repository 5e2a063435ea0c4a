// SPDX-License-Identifier: Apache-2.0
#include "cache/file_system.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>

namespace flashjit::cache {

int FileSystem::open_at(int directory, const char* path, int flags, mode_t mode) {
  return ::openat(directory, path, flags | O_CLOEXEC, mode);
}

ssize_t FileSystem::read(int descriptor, void* buffer, std::size_t bytes) { return ::read(descriptor, buffer, bytes); }

ssize_t FileSystem::read_at(int descriptor, void* buffer, std::size_t bytes, std::uint64_t offset) {
  return ::pread(descriptor, buffer, bytes, static_cast<off_t>(offset));
}

ssize_t FileSystem::write(int descriptor, const void* buffer, std::size_t bytes) {
  return ::write(descriptor, buffer, bytes);
}

int FileSystem::sync(int descriptor) { return ::fsync(descriptor); }

int FileSystem::close(int descriptor) { return ::close(descriptor); }

int FileSystem::status(int descriptor, struct stat& status) { return ::fstat(descriptor, &status); }

int FileSystem::status_at(int directory, const char* name, struct stat& status) {
  return ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW);
}

int FileSystem::rename_at(int directory, const char* from, const char* to) {
  return ::renameat(directory, from, directory, to);
}

int FileSystem::unlink_at(int directory, const char* name) { return ::unlinkat(directory, name, 0); }

int FileSystem::make_directory_at(int directory, const char* name, mode_t mode) {
  return ::mkdirat(directory, name, mode);
}

int FileSystem::remove_directory_at(int directory, const char* name) {
  return ::unlinkat(directory, name, AT_REMOVEDIR);
}

int FileSystem::touch(int descriptor) { return ::futimens(descriptor, nullptr); }

// A lock of the open file description: two engines of one process exclude each other, and closing some other descriptor
// of the file does not give it up, as with the older kind (F_SETLK).
int FileSystem::lock_byte(int descriptor, std::uint64_t offset) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  return ::fcntl(descriptor, F_OFD_SETLK, &lock);
}

std::optional<std::vector<std::string>> FileSystem::names(int directory) {
  // Opened anew rather than duplicated: duplicates share the position in the directory.
  const int descriptor = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(descriptor < 0 ? nullptr : ::fdopendir(descriptor), ::closedir);
  if (!stream) {
    if (descriptor >= 0) ::close(descriptor);
    return std::nullopt;
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return std::nullopt;
  return names;
}

std::int64_t FileSystem::now() { return std::time(nullptr); }

FileSystem& system_calls() {
  static FileSystem files;
  return files;
}

Descriptor::Descriptor(FileSystem& files, int directory, const char* path, int flags, mode_t mode)
    : files_(&files), value_(retry([&] { return files.open_at(directory, path, flags, mode); })) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  files_ = other.files_;
  value_ = std::exchange(other.value_, -1);
  return *this;
}

bool Descriptor::close() {
  if (!is_open()) return true;
  // Never repeated: Linux has closed it even when a signal came, and the number may be another file's by now.
  return files_->close(std::exchange(value_, -1)) == 0 || errno == EINTR;
}

}  // namespace flashjit::cache
