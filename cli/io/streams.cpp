// SPDX-License-Identifier: Apache-2.0
#include "cli/io/streams.h"

#include <fcntl.h>
#include <flashjit/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace flashjit::cli {
namespace {

// Whether SIGPIPE was left as shells leave it.
bool pipe_signal_was_default = false;
// Longer than what stands in a message for good reason, paths and variants among it; and what is kept of a longer one.
constexpr std::size_t kLongestWord = 400, kWordStart = 100, kWordEnd = 50;
// Of the first write to stdout that failed: what errno was.
int output_error = 0;

// Of a control character in UTF-8, the bytes: U+0080 to U+009F have two.
std::size_t control_bytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte == '\n') return 0;
  if (byte < 0x20 || byte == 0x7f) return 1;
  return byte == 0xc2 && text.size() > 1 && (static_cast<unsigned char>(text[1]) & 0xe0) == 0x80 ? 2 : 0;
}

bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

std::string shortened(std::string_view word) {
  if (word.size() <= kLongestWord) return std::string(word);
  std::size_t start = kWordStart, end = word.size() - kWordEnd;
  while (start > 0 && is_inside_character(word[start])) --start;
  while (end < word.size() && is_inside_character(word[end])) ++end;
  return fmt::format("{}…{}", word.substr(0, start), word.substr(end));
}

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

std::string printable(std::string_view text) {
  std::string line, result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t control = control_bytes(text.substr(at));
    line += control == 0 ? text[at] : ' ';
    at += control == 0 ? 1 : control;
  }
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find_first_of(" \n", at), line.size());
    result += shortened(std::string_view(line).substr(at, end - at));
    if (end < line.size()) result += line[end];
    at = end + 1;
  }
  return result;
}

void end_if_reader_left() {
  if (output_error != EPIPE || !pipe_signal_was_default) return;
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

}  // namespace flashjit::cli
