// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fcntl.h>
#include <flashjit/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace flashjit::cli {
namespace {

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

OutputFile::OutputFile(std::string option, std::string path) : option_(std::move(option)), path_(std::move(path)) {
  if (path_.empty()) throw Error(ErrorCode::invalid_argument, option_ + ": must be the path of a file, was empty");
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path_, error);
  target_ = error ? path_ : resolved.string();
  // Replacing a device such as /dev/null by a file would harm the whole machine.
  const auto status = std::filesystem::status(target_, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} must be a regular file or not exist, was something else", option_, path_));
  }
  const std::filesystem::path parent = std::filesystem::absolute(target_, error).parent_path();
  if (::access(parent.c_str(), W_OK | X_OK) != 0) fail("cannot be written");
  if (!std::filesystem::is_directory(parent, error)) {
    errno = ENOTDIR;
    fail("cannot be written");
  }
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  const std::filesystem::path target(target_);
  const std::string name = fmt::format(".{}.{}.tmp", target.filename().string(), ::getpid());
  const std::string temporary = (target.parent_path() / name).string();
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) fail("cannot be created");
  temporary_ = temporary;
  const bool written = write_all(descriptor, bytes);
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
