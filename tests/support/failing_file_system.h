// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>

#include "cache/file_system.h"

namespace flashjit::tests {

// The operating system's files, with failures at will. Does not wait for the disk: no test cuts the power.
class FailingFileSystem : public cache::FileSystem {
 public:
  enum class Call {
    open,
    read,
    read_at,
    write,
    sync,
    close,
    status,
    status_at,
    rename,
    unlink,
    make_directory,
    remove_directory,
    touch,
    lock,
    names,
  };

  // The call of this number (from 0) fails with this error; or every call from then on.
  void fail_at(int number, int error) { fail_between(number, number, error); }
  void fail_from(int number, int error) { fail_between(number, std::numeric_limits<int>::max(), error); }
  // Every call of this kind fails.
  void fail_each(Call kind, int error) {
    failing_kind_ = kind;
    kind_error_ = error;
  }
  // So many bytes at most are read or written at once.
  void limit_bytes(std::size_t bytes) { max_bytes_ = bytes; }
  void set_clock_ahead(std::int64_t seconds) { ahead_ = seconds; }

  int calls() const { return calls_; }
  // Whether a call of this kind was made to fail.
  bool failed(Call kind) const { return (failed_kinds_ & bit(kind)) != 0; }

  int open_at(int directory, const char* path, int flags, mode_t mode) override {
    return fails(Call::open) ? -1 : FileSystem::open_at(directory, path, flags, mode);
  }
  ssize_t read(int descriptor, void* buffer, std::size_t bytes) override {
    return fails(Call::read) ? -1 : FileSystem::read(descriptor, buffer, std::min(bytes, max_bytes_));
  }
  ssize_t read_at(int descriptor, void* buffer, std::size_t bytes, std::uint64_t offset) override {
    return fails(Call::read_at) ? -1 : FileSystem::read_at(descriptor, buffer, std::min(bytes, max_bytes_), offset);
  }
  ssize_t write(int descriptor, const void* buffer, std::size_t bytes) override {
    return fails(Call::write) ? -1 : FileSystem::write(descriptor, buffer, std::min(bytes, max_bytes_));
  }
  int sync(int) override { return fails(Call::sync) ? -1 : 0; }
  int close(int descriptor) override {
    const int result = FileSystem::close(descriptor);
    return fails(Call::close) ? -1 : result;
  }
  int status(int descriptor, struct stat& status) override {
    return fails(Call::status) ? -1 : FileSystem::status(descriptor, status);
  }
  int status_at(int directory, const char* name, struct stat& status) override {
    return fails(Call::status_at) ? -1 : FileSystem::status_at(directory, name, status);
  }
  int rename_at(int directory, const char* from, const char* to) override {
    return fails(Call::rename) ? -1 : FileSystem::rename_at(directory, from, to);
  }
  int unlink_at(int directory, const char* name) override {
    return fails(Call::unlink) ? -1 : FileSystem::unlink_at(directory, name);
  }
  int make_directory_at(int directory, const char* name, mode_t mode) override {
    return fails(Call::make_directory) ? -1 : FileSystem::make_directory_at(directory, name, mode);
  }
  int remove_directory_at(int directory, const char* name) override {
    return fails(Call::remove_directory) ? -1 : FileSystem::remove_directory_at(directory, name);
  }
  int touch(int descriptor) override {
    if (fails(Call::touch)) return -1;
    const timespec time = {now(), 0};
    const timespec times[] = {time, time};
    return ::futimens(descriptor, times);
  }
  int lock_byte(int descriptor, std::uint64_t offset) override {
    return fails(Call::lock) ? -1 : FileSystem::lock_byte(descriptor, offset);
  }
  std::optional<std::vector<std::string>> names(int directory) override {
    return fails(Call::names) ? std::nullopt : FileSystem::names(directory);
  }
  std::int64_t now() override { return FileSystem::now() + ahead_; }

 protected:
  // Before each call; true, with errno, makes it fail.
  virtual bool fails(Call kind) {
    const int number = calls_++;
    const bool by_number = number >= first_ && number <= last_;
    if (!by_number && failing_kind_ != kind) return false;
    failed_kinds_ |= bit(kind);
    errno = by_number ? error_ : kind_error_;
    return true;
  }

 private:
  void fail_between(int first, int last, int error) {
    first_ = first;
    last_ = last;
    error_ = error;
  }
  static unsigned bit(Call kind) { return 1u << static_cast<int>(kind); }

  int first_ = std::numeric_limits<int>::max(), last_ = -1, error_ = 0;
  std::optional<Call> failing_kind_;
  int kind_error_ = 0;
  std::size_t max_bytes_ = std::numeric_limits<std::size_t>::max();
  std::int64_t ahead_ = 0;
  std::atomic<int> calls_{0};
  std::atomic<unsigned> failed_kinds_{0};
};

}  // namespace flashjit::tests
