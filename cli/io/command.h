// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: how they are registered, and what the chosen one gets from the command line.
#pragma once

#include <flashjit/engine.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// CLI11 takes a compiler several seconds. Only command.cpp, command_line.cpp and completion.cpp include it.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace flashjit::cli {

enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,  // the work was done and its result is wrong: a comparison or a kernel that does not compile
  kError = 2,        // the work could not be done: bad input, or something is missing
};

struct Session {
  bool verbose = false;

  // From the environment; with --verbose the engine's log goes to stderr.
  EngineOptions engine_options() const;
  // The same for the GPU, whatever FLASHJIT_DEVICE says: for measurements.
  EngineOptions gpu_engine_options() const;
};

// The subcommand that was chosen on the command line, bound to its options.
struct Command {
  Session session;
  std::function<int(const Session&)> run;
};

// A subcommand with the options that all have. The epilog closes its --help with examples.
CLI::App* add_subcommand(CLI::App& app, Command& command, const std::string& name, const std::string& description,
                         const std::string& epilog);

// A subcommand that only has subcommands of its own.
CLI::App* add_group(CLI::App& app, const std::string& name, const std::string& description, const std::string& epilog);

// The words for values that completion knows; that of files is FILE.
inline constexpr const char *kArchType = "ARCH", *kArchListType = "ARCH,...";
// The word for what no completion knows, among others that it does.
inline constexpr const char* kTextType = "TEXT";

// An option with its default in --help; type is the word that stands for the value there. No value may be empty: that
// is what a variable of the shell gives that nobody set. Values are std::string and std::optional of it.
template <typename Value>
CLI::Option* add_option(CLI::App* subcommand, const std::string& names, Value& value, const std::string& type,
                        const std::string& help);
// An option that may be given again, each time with one value, which check(option, value) may refuse.
CLI::Option* add_repeated(CLI::App* subcommand, const std::string& names, std::vector<std::string>& values,
                          const std::string& type, const std::string& help,
                          void (*check)(const std::string& option, const std::string& value));
// One of these words, which stand in --help for the value.
template <typename Value>
CLI::Option* add_choice(CLI::App* subcommand, const std::string& names, Value& value,
                        const std::vector<std::string>& words, const std::string& help);
// A whole number in the range. Values are int and std::optional of it.
struct Range {
  int low, high;
};
template <typename Value>
CLI::Option* add_integer(CLI::App* subcommand, const std::string& names, Value& value, const std::string& type,
                         Range range, const std::string& help);
CLI::Option* add_seed(CLI::App* subcommand, const std::string& names, std::optional<std::uint64_t>& value,
                      const std::string& help);
CLI::Option* add_finite(CLI::App* subcommand, const std::string& names, std::optional<float>& value,
                        const std::string& help);
CLI::Option* add_flag(CLI::App* subcommand, const std::string& names, bool& value, const std::string& help);
void require(CLI::Option* option);
void exclude(CLI::Option* option, CLI::Option* other);
// The option means something only beside the other one.
void need(CLI::Option* option, CLI::Option* other);
// On the command line; known when the subcommand runs.
bool was_given(const CLI::Option* option);
std::string name_of(const CLI::Option* option);  // "--head-dim"

using Run = std::function<int(const Session&)>;
void run_when_chosen(CLI::App* subcommand, Command& command, Run run);

// The same for a subcommand whose options live in an Options, which run(options, session) gets.
template <typename Options>
void run_when_chosen(CLI::App* subcommand, Command& command, std::shared_ptr<Options> options,
                     int (*run)(const Options&, const Session&)) {
  run_when_chosen(subcommand, command,
                  [options = std::move(options), run](const Session& session) { return run(*options, session); });
}

void add_info(CLI::App& app, Command& command);
void add_attend(CLI::App& app, Command& command);
void add_render(CLI::App& app, Command& command);
void add_variants(CLI::App& app, Command& command);
void add_compile(CLI::App& app, Command& command);
void add_verify(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_autotune(CLI::App& app, Command& command);
void add_cache(CLI::App& app, Command& command);
void add_completion(CLI::App& app, Command& command);

// Keys stay in the order in which they were set.
using Json = nlohmann::ordered_json;
// Indented, with bytes that are not UTF-8 (paths may have some) replaced.
std::string to_text(const Json& json);

}  // namespace flashjit::cli
