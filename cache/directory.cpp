// SPDX-License-Identifier: Apache-2.0
#include "cache/directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;
constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY;
constexpr std::int64_t kHour = 3600;  // in seconds

bool write_all(FileSystem& files, int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry([&] { return files.write(descriptor, bytes.data(), bytes.size()); });
    if (written == 0) errno = ENOSPC;  // it says nothing of its own
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Fewer bytes than asked for when the file ends before.
bool read_all(FileSystem& files, int descriptor, std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = retry([&] { return files.read(descriptor, bytes.data() + done, bytes.size() - done); });
    if (count < 0) return false;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return true;
}

// Takes the last part, ".<text>", off the name when the text is of these characters and has so many of them.
bool drop_part(std::string_view& name, std::string_view characters, std::size_t least, std::size_t most) {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0) return false;
  const std::string_view part = name.substr(dot + 1);
  if (part.size() < least || part.size() > most || part.find_first_not_of(characters) != part.npos) return false;
  name.remove_suffix(part.size() + 1);
  return true;
}

// Zero, or errno of what went wrong.
int make_directories(FileSystem& files, const fs::path& path) {
  const auto make = [&] {
    const int result = retry([&] { return files.make_directory_at(AT_FDCWD, path.c_str(), kDirectoryMode); });
    return result == 0 || errno == EEXIST ? 0 : errno;
  };
  const int error = make();
  if (error != ENOENT || !path.has_relative_path() || !path.has_parent_path()) return error;
  const int above = make_directories(files, path.parent_path());
  return above != 0 ? above : make();
}

}  // namespace

std::string message_of(int error) { return std::generic_category().message(error); }

// Random, because process ids repeat: in containers, and on machines that share a directory.
std::string temporary_name(const std::string& name) {
  std::random_device random;
  return fmt::format("{}.{}.{:08x}{:08x}{}", name, ::getpid(), random(), random(), kTemporarySuffix);
}

std::optional<std::string_view> published_name(std::string_view temporary) {
  constexpr std::size_t kRandomDigits = 16, kMostPidDigits = 10;
  if (!temporary.ends_with(kTemporarySuffix)) return std::nullopt;
  temporary.remove_suffix(kTemporarySuffix.size());
  const bool is_temporary = drop_part(temporary, "0123456789abcdef", kRandomDigits, kRandomDigits) &&
                            drop_part(temporary, "0123456789", 1, kMostPidDigits);
  return is_temporary ? std::optional(temporary) : std::nullopt;
}

std::string why_writable(const fs::path& path, mode_t mode, mode_t writers) {
  if ((mode & writers) == 0) return {};
  return fmt::format("{}: must not be writable by others, has mode {:04o}", path.string(), mode & 07777);
}

bool is_another_hour(std::int64_t time, std::int64_t now) { return time < now - kHour || time > now + kHour; }

Directory::Directory(FileSystem& files, fs::path path, Trust trust, int above, const char* name, int flags)
    : files_(&files), path_(std::move(path)), trust_(trust), descriptor_(files, above, name, kOpenDirectory | flags) {
  struct stat status {};
  if (!descriptor_.is_open() && errno == ENOENT) return;
  if (!descriptor_.is_open() || retry([&] { return files.status(descriptor_.value(), status); }) != 0) {
    problem_ = fmt::format("{}: cannot be opened: {}", path_.string(), message_of(errno));
  } else {
    problem_ = why_refused(status);
  }
  owner_ = status.st_uid;
  if (!problem_.empty()) descriptor_.close();
}

std::string Directory::why_refused(const struct stat& status) const {
  if (trust_ == Trust::own && status.st_uid != ::geteuid()) {
    return fmt::format("{}: must belong to this user (uid {}), belongs to uid {}", path_.string(), ::geteuid(),
                       status.st_uid);
  }
  return why_writable(path_, status.st_mode, kWritableByOthers);
}

Directory Directory::open(FileSystem& files, const fs::path& path, Trust trust) {
  return {files, path, trust, AT_FDCWD, path.c_str(), 0};
}

Directory Directory::make(FileSystem& files, const fs::path& path) {
  Directory directory = open(files, path, Trust::own);
  if (directory.is_open() || !directory.problem().empty()) return directory;
  const int error = make_directories(files, path);
  directory = open(files, path, Trust::own);
  if (!directory.is_open() && directory.problem().empty()) {
    directory.problem_ = fmt::format("{}: cannot be made: {}", path.string(), message_of(error != 0 ? error : ENOENT));
  }
  return directory;
}

void Directory::refuse(std::string problem) {
  problem_ = std::move(problem);
  descriptor_.close();
}

Directory Directory::below(const std::string& name) const {
  return {*files_, path_ / name, trust_, descriptor_.value(), name.c_str(), O_NOFOLLOW};
}

Directory Directory::make_below(const std::string& name) const {
  Directory directory = below(name);
  if (directory.is_open() || !directory.problem().empty()) return directory;
  // Somebody else may have made it meanwhile; opening it tells.
  const bool made =
      retry([&] { return files_->make_directory_at(descriptor_.value(), name.c_str(), kDirectoryMode); }) == 0;
  const std::string why = message_of(errno);
  directory = below(name);
  if (!made && !directory.is_open() && directory.problem().empty()) {
    directory.problem_ = fmt::format("{}: cannot be made: {}", directory.path().string(), why);
  }
  return directory;
}

// A file that may be read, with what it is; or why there is none.
struct Directory::OpenFile {
  FileContent::State state = FileContent::State::absent;
  Descriptor descriptor;
  struct stat status {};
};

bool Directory::is_trusted(const struct stat& status) const {
  const bool by_owner = status.st_uid == owner_ || (trust_ == Trust::given && status.st_uid == 0);
  return S_ISREG(status.st_mode) && by_owner && (status.st_mode & kWritableByOthers) == 0;
}

Directory::OpenFile Directory::open_to_read(const std::string& name) const {
  using State = FileContent::State;
  OpenFile file;
  file.descriptor = open_file(name, O_RDONLY);
  if (!file.descriptor.is_open()) {
    // Of a symbolic link and of a socket. All else, as no permission or no descriptor, says nothing about the file.
    if (errno == ELOOP || errno == ENXIO) file.state = State::strange;
    return file;
  }
  if (retry([&] { return files_->status(file.descriptor.value(), file.status); }) != 0) return file;
  file.state = is_trusted(file.status) ? State::whole : State::strange;
  return file;
}

FileContent Directory::read(const std::string& name, std::size_t limit, bool mark_used) const {
  using State = FileContent::State;
  const OpenFile file = open_to_read(name);
  if (file.state != State::whole) return {file.state, {}};
  if (static_cast<std::uint64_t>(file.status.st_size) > limit) return {State::strange, {}};
  FileContent content{State::whole, std::string(static_cast<std::size_t>(file.status.st_size), '\0')};
  if (!read_all(*files_, file.descriptor.value(), content.bytes)) return {};
  if (mark_used && is_another_hour(file.status.st_mtime, files_->now())) {
    files_->touch(file.descriptor.value());  // a file system that is read-only keeps no track, and needs none
  }
  return content;
}

FileContent Directory::read_start(const std::string& name, std::size_t limit) const {
  using State = FileContent::State;
  const OpenFile file = open_to_read(name);
  if (file.state != State::whole) return {file.state, {}};
  const auto bytes = std::min<std::uint64_t>(limit, static_cast<std::uint64_t>(file.status.st_size));
  FileContent content{State::whole, std::string(static_cast<std::size_t>(bytes), '\0')};
  if (!read_all(*files_, file.descriptor.value(), content.bytes)) return {};
  return content;
}

Descriptor Directory::open_file(const std::string& name, int flags, mode_t mode) const {
  // Without O_NONBLOCK a pipe of that name would hold us up.
  return {*files_, descriptor_.value(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK, mode};
}

bool Directory::publish(const std::string& name, std::string_view bytes, Durability durability) const {
  const std::string temporary = temporary_name(name);
  Descriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL, kFileMode);
  if (!file.is_open()) return false;
  const auto sync = [&](int descriptor) {
    return durability == Durability::unsynced || retry([&] { return files_->sync(descriptor); }) == 0;
  };
  // Contents first, then the name: after a crash the name stands for all of the bytes or for none.
  if (!write_all(*files_, file.value(), bytes) || !sync(file.value()) || !file.close() || !rename(temporary, name)) {
    const int error = errno;
    remove(temporary);
    errno = error;
    return false;
  }
  sync(descriptor_.value());  // so that the name survives a power cut, where the file system can do that
  return true;
}

bool Directory::rename(const std::string& from, const std::string& to) const {
  return retry([&] { return files_->rename_at(descriptor_.value(), from.c_str(), to.c_str()); }) == 0;
}

// A directory takes no file's place, nor the other way round: what was set aside before gives way.
void Directory::set_aside(const std::string& name, const std::string& bad) const {
  if (rename(name, bad) || errno == ENOENT) return;  // somebody else was faster
  if (remove(bad) == Removal::removed || remove_below(bad)) rename(name, bad);
}

Directory::Removal Directory::remove(const std::string& name) const {
  if (retry([&] { return files_->unlink_at(descriptor_.value(), name.c_str()); }) == 0) return Removal::removed;
  return errno == ENOENT ? Removal::absent : Removal::failed;
}

bool Directory::remove_below(const std::string& name) const {
  return retry([&] { return files_->remove_directory_at(descriptor_.value(), name.c_str()); }) == 0;
}

std::optional<std::vector<FileStatus>> Directory::try_list() const {
  auto names = files_->names(descriptor_.value());
  while (!names && errno == EINTR) names = files_->names(descriptor_.value());
  if (!names) return std::nullopt;
  std::sort(names->begin(), names->end());
  std::vector<FileStatus> files;
  for (std::string& name : *names) {
    struct stat status {};
    if (retry([&] { return files_->status_at(descriptor_.value(), name.c_str(), status); }) != 0) continue;
    files.push_back({std::move(name), S_ISREG(status.st_mode), S_ISDIR(status.st_mode),
                     static_cast<std::uint64_t>(status.st_size), status.st_mtime});
  }
  return files;
}

}  // namespace flashjit::cache
