// SPDX-License-Identifier: Apache-2.0
#include "cli/io/command.h"

#include <flashjit/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

#include "cli/io/streams.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

using ReadValue = std::function<void(const std::string& option, const std::string& text)>;

template <typename T>
std::string default_text(const T& value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string default_text(const std::optional<T>& value) {
  return value ? default_text(*value) : std::string();
}

// CLI11 hands over text alone. What it reads as numbers by itself has octal and hexadecimal ones among them, takes an
// empty text for none, and does not say what would be right.
template <typename Value>
CLI::Option* add_value(CLI::App* subcommand, const std::string& names, const Value& value, const std::string& type,
                       const std::string& help, ReadValue read) {
  const std::string option = names.substr(names.rfind(',') + 1);  // of "-o,--output" the long one
  const auto read_text = [option, read = std::move(read)](const std::string& text) {
    if (text.empty()) throw Error(ErrorCode::invalid_argument, option + ": must not be empty");
    read(option, text);
  };
  return subcommand->add_option_function<std::string>(names, read_text, help)
      ->type_name(type)
      ->default_str(default_text(value));
}

}  // namespace

EngineOptions Session::engine_options() const {
  EngineOptions options = EngineOptions::from_environment();
  if (verbose) {
    options.log = [](LogLevel, const std::string& line) { tell("{}", line); };
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
  return add_value(subcommand, names, value, type, help,
                   [&value](const std::string&, const std::string& text) { value = text; });
}

CLI::Option* add_repeated(CLI::App* subcommand, const std::string& names, std::vector<std::string>& values,
                          const std::string& type, const std::string& help,
                          void (*check)(const std::string& option, const std::string& value)) {
  const auto read = [option = names, &values, check](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      if (text.empty()) throw Error(ErrorCode::invalid_argument, option + ": must not be empty");
      check(option, text);
    }
    values = texts;
  };
  return subcommand->add_option_function<std::vector<std::string>>(names, read, help)
      ->type_name(type)
      ->allow_extra_args(false);
}

template <typename Value>
CLI::Option* add_choice(CLI::App* subcommand, const std::string& names, Value& value,
                        const std::vector<std::string>& words, const std::string& help) {
  return add_value(subcommand, names, value, fmt::format("{}", fmt::join(words, "|")), help,
                   [&value, words](const std::string& option, const std::string& text) {
                     require_word(option, text, words);
                     value = text;
                   });
}

template <typename Value>
CLI::Option* add_integer(CLI::App* subcommand, const std::string& names, Value& value, const std::string& type,
                         Range range, const std::string& help) {
  return add_value(subcommand, names, value, type, help,
                   [&value, range](const std::string& option, const std::string& text) {
                     value = static_cast<int>(parse_integer(option, text, range.low, range.high));
                   });
}

CLI::Option* add_seed(CLI::App* subcommand, const std::string& names, std::optional<std::uint64_t>& value,
                      const std::string& help) {
  return add_value(subcommand, names, value, "SEED", help,
                   [&value](const std::string& option, const std::string& text) { value = parse_seed(option, text); });
}

CLI::Option* add_finite(CLI::App* subcommand, const std::string& names, std::optional<float>& value,
                        const std::string& help) {
  return add_value(subcommand, names, value, "X", help, [&value](const std::string& option, const std::string& text) {
    value = parse_finite(option, text);
  });
}

template <typename Value>
using AddOption = CLI::Option*(CLI::App*, const std::string&, Value&, const std::string&, const std::string&);
template AddOption<std::string> add_option<std::string>;
template AddOption<std::optional<std::string>> add_option<std::optional<std::string>>;
template <typename Value>
using AddChoice = CLI::Option*(CLI::App*, const std::string&, Value&, const std::vector<std::string>&,
                               const std::string&);
template AddChoice<std::string> add_choice<std::string>;
template AddChoice<std::optional<std::string>> add_choice<std::optional<std::string>>;
template <typename Value>
using AddInteger = CLI::Option*(CLI::App*, const std::string&, Value&, const std::string&, Range, const std::string&);
template AddInteger<int> add_integer<int>;
template AddInteger<std::optional<int>> add_integer<std::optional<int>>;

CLI::Option* add_flag(CLI::App* subcommand, const std::string& names, bool& value, const std::string& help) {
  return subcommand->add_flag(names, value, help)->disable_flag_override();
}

void require(CLI::Option* option) { option->required(); }
void exclude(CLI::Option* option, CLI::Option* other) { option->excludes(other); }
void need(CLI::Option* option, CLI::Option* other) { option->needs(other); }
bool was_given(const CLI::Option* option) { return option->count() > 0; }
std::string name_of(const CLI::Option* option) { return option->get_name(); }

void run_when_chosen(CLI::App* subcommand, Command& command, Run run) {
  subcommand->callback([&command, run = std::move(run)] { command.run = run; });
}

std::string to_text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace flashjit::cli
