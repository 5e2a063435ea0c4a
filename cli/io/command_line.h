// SPDX-License-Identifier: Apache-2.0
// The command line as a whole: which subcommand it chooses, its help, and what is wrong with it.
#pragma once

#include <memory>

#include "cli/io/command.h"

namespace flashjit::cli {

class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Does what it says and gives the exit code. Throws Error, which for a wrong command line says whose help to read.
  int run(int argc, char** argv);
  // Whether more than one line is wanted of an error.
  bool verbose() const { return command_.session.verbose; }

 private:
  void parse(int argc, char** argv);

  std::unique_ptr<CLI::App> app_;
  Command command_;
};

}  // namespace flashjit::cli
