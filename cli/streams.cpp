// SPDX-License-Identifier: Apache-2.0
#include "cli/streams.h"

#include <fcntl.h>
#include <flashjit/error.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace flashjit::cli {
namespace {

// Whether SIGPIPE was left as shells leave it.
bool pipe_signal_was_default = false;
// Of the first write to stdout that failed: what errno was.
int output_error = 0;

void remember_failure() noexcept {
  if (output_error == 0) output_error = errno;
}

}  // namespace

void prepare_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // The wrong way round, so that using it still fails; the lowest free descriptor is this one.
    const int direction = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", direction) != descriptor) {
      throw Error(ErrorCode::io, fmt::format("descriptor {}: must be open, or /dev/null must be there", descriptor));
    }
  }
  pipe_signal_was_default = std::signal(SIGPIPE, SIG_IGN) == SIG_DFL;
}

void write_output(std::string_view text) noexcept {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) remember_failure();
}

void flush_output() noexcept {
  if (std::fflush(stdout) != 0) remember_failure();
}

void require_output() {
  flush_output();
  if (output_error == 0) return;
  throw Error(ErrorCode::io, fmt::format("standard output: cannot be written: {}", std::strerror(output_error)));
}

void write_message(std::string_view text) noexcept { std::fwrite(text.data(), 1, text.size(), stderr); }

void end_if_reader_left() {
  if (output_error != EPIPE || !pipe_signal_was_default) return;
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

}  // namespace flashjit::cli
