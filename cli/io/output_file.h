// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>
#include <string_view>

namespace flashjit::cli {

// To be denied to bundles: one that others may write to is refused where it is read.
inline constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

class OutputFile {
 public:
  // Checks that the file can be made: it is a regular file or nothing, in a writable directory. Writes nothing yet.
  // Throws Error which names the option and the path. Denied: rights that the file does not get, whatever the umask and
  // the file before it say.
  OutputFile(std::string option, std::string path, mode_t denied = 0);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Writes a temporary file beside the path, with the mode and as far as possible the owner of a file that is there,
  // and removes those that killed processes left there. Throws Error(io).
  void write(std::string_view bytes);
  // Gives the temporary file its name. Throws Error(io).
  void publish();
  const std::string& path() const { return path_; }

 private:
  int create(mode_t mode);  // the temporary file, open
  [[noreturn]] void fail(const std::string& what) const;

  std::string option_;
  std::string path_;    // as the user wrote it
  std::string target_;  // where symbolic links lead
  mode_t denied_;
  std::string temporary_;
};

}  // namespace flashjit::cli
