// SPDX-License-Identifier: Apache-2.0
// The standard streams. What is printed on stdout is the result, so it must arrive. What is told on stderr beside the
// work need not: a terminal that was closed or a full disk behind the log is no reason to give up an hour's tuning.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace flashjit::cli {

// Before any file is opened: it must not land on the descriptor of a standard stream that the caller closed, where the
// next line of text would go into it. From here on a reader that went away makes writing fail and ends nothing.
void prepare_streams();

// On stdout. A failure is remembered, so that the work ends and its files are written first; require_output() throws
// it.
void write_output(std::string_view text) noexcept;
void flush_output() noexcept;
// Throws Error(io) unless all that was written has arrived.
void require_output();
// On stderr; whether it arrives or not.
void write_message(std::string_view text) noexcept;

// Ends the process as the signal would have, if stdout's reader went away (`flashjit render | head`) and nobody asked
// for another end: that is what shells expect of a part of a pipeline. Else it does nothing.
void end_if_reader_left();

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

// As it may stand in a message: a space in the place of each control character but line ends, which terminals obey, and
// of a word that nobody would read to its end the beginning and the end.
std::string printable(std::string_view text);

// A line that begins with the command's name.
template <typename... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  write_message("flashjit: " + printable(fmt::format(format, std::forward<Args>(args)...)) + "\n");
}

}  // namespace flashjit::cli
