// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <fmt/format.h>

#include <cstdio>

namespace flashjit::cli {

EngineOptions Session::engine_options() const {
  EngineOptions options = EngineOptions::from_environment();
  if (verbose) {
    options.log = [](LogLevel, const std::string& line) { fmt::print(stderr, "flashjit: {}\n", line); };
  }
  return options;
}

EngineOptions Session::gpu_engine_options() const {
  EngineOptions options = engine_options();
  options.emulate.clear();
  return options;
}

CLI::App* add_subcommand(CLI::App& app, Command& command, const std::string& name, const std::string& description,
                         const std::string& epilog) {
  CLI::App* subcommand = app.add_subcommand(name, description);
  subcommand->footer(epilog);
  subcommand->add_flag("--verbose", command.session.verbose,
                       "Log to stderr what the engine does, and show whole compiler logs");
  return subcommand;
}

std::string to_text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace flashjit::cli
