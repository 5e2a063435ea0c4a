// SPDX-License-Identifier: Apache-2.0
// The command flashjit: turns errors into one line and an exit code.
#include <flashjit/error.h>

#include <algorithm>
#include <exception>
#include <string>

#include "cli/io/command_line.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

int report(std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::replace(message.begin(), message.end(), '\n', ' ');
  tell("{}", message);
  return kError;
}

int run(int argc, char** argv) {
  prepare_streams();
  CommandLine line;
  try {
    return line.run(argc, argv);
  } catch (const Error& error) {
    end_if_reader_left();
    report(error.what());
    if (line.verbose() && !error.log().empty()) write_message(error.log() + "\n");
    if (line.verbose() && !error.source_path().empty()) write_message("source: " + error.source_path() + "\n");
    return kError;
  }
}

}  // namespace
}  // namespace flashjit::cli

int main(int argc, char** argv) {
  try {
    return flashjit::cli::run(argc, argv);
  } catch (const std::exception& error) {
    return flashjit::cli::report(error.what());
  }
}
