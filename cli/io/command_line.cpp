// SPDX-License-Identifier: Apache-2.0
#include "cli/io/command_line.h"

#include <flashjit/error.h>
#include <flashjit/version.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "cli/io/streams.h"
#include "cli/io/words.h"

namespace flashjit::cli {
namespace {

constexpr const char* kDescription = "Attention kernels that are rendered, compiled and cached when they are needed.";
constexpr const char* kEpilog = R"(Each subcommand explains itself: flashjit help attend, or flashjit attend --help.

Exit codes: 0 success; 1 a check failed (attend --check, verify, a kernel of compile, a tuning of autotune); 2 bad
input, something is missing, or standard output cannot be written, told in one line on stderr.

Environment: FLASHJIT_CACHE_DIR (where compiled kernels are kept; default $XDG_CACHE_HOME/flashjit or
$HOME/.cache/flashjit), FLASHJIT_CACHE_SIZE (its largest size; default 1G), FLASHJIT_SYSTEM_CACHE (further
directories that are only read, DIR:DIR), FLASHJIT_BUNDLES (bundle files that are only read, FILE:FILE),
FLASHJIT_POLICY (compile, cache_only, off), FLASHJIT_TUNING (off, recorded, on_first_use, frozen),
FLASHJIT_NVRTC (an exact libnvrtc.so to use), FLASHJIT_DEVICE (gpu; emulate or emulate:ARCH: kernels run in the
emulator), FLASHJIT_CHECK_PAGES (1: look at what ragged batches say before each call), FLASHJIT_LOG (debug, info,
warning), FLASHJIT_TEMPLATE_DIR (device code to use instead of the built-in one).)";
constexpr const char* kHelpEpilog = R"(Examples:
  flashjit help
  flashjit help cache export)";

// Options that there were, for those who know them: what to write now.
struct Replacement {
  const char *old, *option, *how;
};
constexpr Replacement kReplacements[] = {{"--causal", "--mask", "masks are chosen with --mask: full, causal"},
                                         {"--head-dim-v", "--head-dim", "--head-dim takes both: 192x128"}};

// The one that the command line reached.
const CLI::App& reached(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : reached(*chosen.back());
}

// "flashjit cache ls"
std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands({})) names.push_back(subcommand->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// App::help() would give that of the subcommand which was chosen below.
std::string help_of(const CLI::App& app) {
  return app.get_formatter()->make_help(&app, path_of(app), CLI::AppFormatMode::Normal);
}

// The one that has arguments which it does not know; of several the first.
const CLI::App& puzzled(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() || !app.remaining().empty() ? app : puzzled(*chosen.back());
}

// What was found in the place of an option, a subcommand or a positional.
std::string why_unknown(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> options = option_names(app);
  std::vector<std::string> subcommands = subcommand_names(app);
  if (argument.size() > 1 && argument.front() == '-') {
    const std::string name = argument.substr(0, argument.find('='));
    for (const Replacement& replacement : kReplacements) {
      if (name == replacement.old && std::count(options.begin(), options.end(), replacement.option) != 0)
        return fmt::format("{} is no option any more: {}", name, replacement.how);
    }
    const CLI::App& last = reached(app);
    if (last.get_option_no_throw(name) != nullptr)
      return fmt::format("{}: must stand behind '{}', whose option it is", name, path_of(last));
    return fmt::format("{}: must be an option of '{}'{}", name, path_of(app), did_you_mean(name, options));
  }
  if (subcommands.empty())
    return fmt::format("'{}': must not be there, '{}' takes no further argument", argument, path_of(app));
  subcommands.insert(subcommands.end(), options.begin(), options.end());  // "version" may be meant as --version
  return fmt::format("'{}': must be a subcommand of '{}'{}", argument, path_of(app),
                     did_you_mean(argument, subcommands));
}

// CLI11 tells of a missing value, of too many and of one for a flag by one exception, whose text is its own.
std::string why_mismatched(const CLI::App& app, const std::string& text) {
  std::string name = text.substr(0, text.find_first_of(": "));
  if (app.get_option_no_throw("--" + name) != nullptr) name.insert(0, "--");
  const CLI::Option* const option = app.get_option_no_throw(name);
  if (option == nullptr) return text;
  if (option->get_expected_max() == 0) return name + ": must be given without a value";
  if (option->count() > 1) return fmt::format("{}: must be given once, was given {} times", name, option->count());
  return fmt::format("{}: must have a value ({}) behind it", name, option->get_type_name());
}

[[noreturn]] void refuse(const CLI::App& app, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} (see {} --help)", why, path_of(app)));
}

// CLI11 takes the option behind one that lacks its value for the value.
void refuse_options_as_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.size() > 1 && value.front() == '-' && app.get_option_no_throw(value) != nullptr)
        refuse(app, fmt::format("{}: must have a value ({}) behind it, was the option {}", option->get_name(),
                                option->get_type_name(), value));
    }
  }
}

const CLI::App& find_subcommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* found = &app;
  for (const std::string& word : words) {
    const std::vector<std::string> names = subcommand_names(*found);
    if (std::find(names.begin(), names.end(), word) == names.end()) refuse(*found, why_unknown(*found, word));
    found = found->get_subcommand(word);
  }
  return *found;
}

void add_help(CLI::App& app, Command& command) {
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* help = app.add_subcommand("help", "Show what --help shows, of a subcommand too");
  help->footer(kHelpEpilog);
  help->add_option("SUBCOMMAND", *words, "Whose help to show [default: that of flashjit]")->type_name("WORD");
  run_when_chosen(help, command, [&app, words](const Session&) {
    write_output(help_of(find_subcommand(app, *words)));
    return kSuccess;
  });
}

}  // namespace

CommandLine::CommandLine() : app_(std::make_unique<CLI::App>(kDescription, "flashjit")) {
  app_->footer(kEpilog);
  app_->set_version_flag("-V,--version", std::string("flashjit ") + version());
  app_->require_subcommand(0, 1);
  app_->get_formatter()->column_width(34);
  for (auto add : {add_info, add_attend, add_render, add_variants, add_compile, add_verify, add_autotune, add_bench,
                   add_cache, add_help, add_completion}) {
    add(*app_, command_);
  }
}

CommandLine::~CommandLine() = default;

void CommandLine::parse(int argc, char** argv) {
  const auto print = [this](const std::string& text) {
    command_.run = [text](const Session&) {
      write_output(text);
      return kSuccess;
    };
  };
  try {
    app_->parse(argc, argv);
    refuse_options_as_values(reached(*app_));
  } catch (const CLI::CallForHelp&) {
    print(help_of(reached(*app_)));
  } catch (const CLI::CallForVersion& asked) {
    print(asked.what() + std::string("\n"));
  } catch (const CLI::ExtrasError&) {
    refuse_options_as_values(reached(*app_));
    const CLI::App& app = puzzled(*app_);
    refuse(app, why_unknown(app, app.remaining().front()));
  } catch (const CLI::ArgumentMismatch& error) {
    refuse(reached(*app_), why_mismatched(reached(*app_), error.what()));
  } catch (const CLI::ParseError& error) {
    refuse_options_as_values(reached(*app_));
    refuse(reached(*app_), error.what());
  } catch (const Error& error) {
    refuse(reached(*app_), error.what());  // of a value
  }
}

int CommandLine::run(int argc, char** argv) {
  try {
    parse(argc, argv);
  } catch (const Error&) {
    // Who asks for help behind a line that is wrong gets it.
    if (std::none_of(argv + 1, argv + argc, [](std::string_view word) { return word == "--help" || word == "-h"; }))
      throw;
    write_output(help_of(reached(*app_)));
    require_output();
    return kSuccess;
  }
  if (!command_.run) {
    write_message(help_of(reached(*app_)));
    return kError;
  }
  const int code = command_.run(command_.session);
  require_output();
  return code;
}

}  // namespace flashjit::cli
