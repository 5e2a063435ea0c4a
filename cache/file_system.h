// SPDX-License-Identifier: Apache-2.0
// The system calls that the cache makes, in one place, so that tests can make any of them fail.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace flashjit::cache {

// Each member is the system call it names, with its result: -1 and errno on failure. None is repeated on EINTR here.
// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open_at(int directory, const char* path, int flags, mode_t mode);  // O_CLOEXEC is added
  virtual ssize_t read(int descriptor, void* buffer, std::size_t bytes);
  virtual ssize_t read_at(int descriptor, void* buffer, std::size_t bytes, std::uint64_t offset);  // pread
  virtual ssize_t write(int descriptor, const void* buffer, std::size_t bytes);
  virtual int sync(int descriptor);
  virtual int close(int descriptor);
  virtual int status(int descriptor, struct stat& status);
  virtual int status_at(int directory, const char* name, struct stat& status);  // of a symbolic link itself
  virtual int rename_at(int directory, const char* from, const char* to);
  virtual int unlink_at(int directory, const char* name);
  virtual int make_directory_at(int directory, const char* name, mode_t mode);
  virtual int remove_directory_at(int directory, const char* name);  // an empty one
  virtual int touch(int descriptor);                                 // sets the time of the last change to now
  // Tries to lock one byte for writing, for this open file description (F_OFD_SETLK).
  virtual int lock_byte(int descriptor, std::uint64_t offset);
  // The names in an open directory, without "." and ".."; nothing on failure.
  virtual std::optional<std::vector<std::string>> names(int directory);
  virtual std::int64_t now();  // seconds since the epoch
};

// The operating system's.
FileSystem& system_calls();

// Runs a system call again when a signal interrupted it.
template <typename Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// An open file, closed at the end of the scope.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(FileSystem& files, int directory, const char* path, int flags, mode_t mode = 0);
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : files_(other.files_), value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool is_open() const { return value_ >= 0; }
  int value() const { return value_; }
  // False when the file system reports only now that it lost something, as NFS does. The descriptor is gone either way.
  bool close();

 private:
  FileSystem* files_ = nullptr;
  int value_ = -1;
};

}  // namespace flashjit::cache
