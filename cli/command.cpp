// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <optional>

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

CLI::App* add_group(CLI::App& app, const std::string& name, const std::string& description, const std::string& epilog) {
  CLI::App* group = app.add_subcommand(name, description);
  group->footer(epilog);
  group->require_subcommand(0, 1);  // main() tells when there is none
  return group;
}

template <typename Value>
CLI::Option* add_option(CLI::App* subcommand, const std::string& names, Value& value, const std::string& type,
                        const std::string& help) {
  return subcommand->add_option(names, value, help)->type_name(type)->capture_default_str();
}
template <typename Value>
using AddOption = CLI::Option*(CLI::App*, const std::string&, Value&, const std::string&, const std::string&);
template AddOption<std::string> add_option<std::string>;
template AddOption<int> add_option<int>;
template AddOption<std::optional<std::string>> add_option<std::optional<std::string>>;
template AddOption<std::optional<int>> add_option<std::optional<int>>;
template AddOption<std::optional<float>> add_option<std::optional<float>>;
template AddOption<std::optional<std::uint64_t>> add_option<std::optional<std::uint64_t>>;

CLI::Option* add_flag(CLI::App* subcommand, const std::string& names, bool& value, const std::string& help) {
  return subcommand->add_flag(names, value, help);
}

void require(CLI::Option* option) { option->required(); }
void require_between(CLI::Option* option, int low, int high) { option->check(CLI::Range(low, high)); }
void exclude(CLI::Option* option, CLI::Option* other) { option->excludes(other); }

void run_when_chosen(CLI::App* subcommand, Command& command, Run run) {
  subcommand->callback([&command, run = std::move(run)] { command.run = run; });
}

std::string to_text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace flashjit::cli
