// SPDX-License-Identifier: Apache-2.0
// The command flashjit: reads the command line, runs one subcommand, turns errors into one line and an exit code.
#include <flashjit/error.h>
#include <flashjit/version.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "cli/command.h"

namespace flashjit::cli {
namespace {

constexpr const char* kDescription = "Attention kernels that are rendered, compiled and cached when they are needed.";
constexpr const char* kEpilog = R"(Each subcommand explains itself: flashjit attend --help.

Exit codes: 0 success; 1 a check failed (attend --check, verify, a kernel of compile, a tuning of autotune); 2 bad
input or something is missing, told in one line on stderr.

Environment: FLASHJIT_CACHE_DIR (where compiled kernels are kept; default $XDG_CACHE_HOME/flashjit or
$HOME/.cache/flashjit), FLASHJIT_CACHE_SIZE (its largest size: 512M), FLASHJIT_SYSTEM_CACHE (further
directories that are only read, DIR:DIR), FLASHJIT_BUNDLES (bundle files that are only read, FILE:FILE),
FLASHJIT_POLICY (compile, cache_only, off), FLASHJIT_TUNING (off, recorded, on_first_use, frozen),
FLASHJIT_NVRTC (an exact libnvrtc.so to use), FLASHJIT_DEVICE (gpu; emulate or emulate:ARCH: kernels run in the
emulator), FLASHJIT_LOG (debug, info, warning), FLASHJIT_TEMPLATE_DIR (device code to use instead of the built-in one).)";

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int report(const std::string& message) {
  fmt::print(stderr, "flashjit: {}\n", one_line(message));
  return kError;
}

int report(const Error& error, bool verbose) {
  report(error.what());
  if (verbose && !error.log().empty()) fmt::print(stderr, "{}\n", error.log());
  if (verbose && !error.source_path().empty()) fmt::print(stderr, "source: {}\n", error.source_path());
  return kError;
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "flashjit");
  app.footer(kEpilog);
  app.set_version_flag("--version", std::string("flashjit ") + version());
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  Command command;
  for (auto add :
       {add_info, add_attend, add_render, add_variants, add_compile, add_verify, add_autotune, add_bench, add_cache}) {
    add(app, command);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return report(std::string(error.what()) + " (see flashjit --help)");
  }
  if (!command.run) return report("a subcommand is required (see flashjit --help)");
  try {
    const int code = command.run(command.session);
    // A full disk or a closed descriptor behind stdout shows only here.
    if (std::fflush(stdout) != 0) return report(std::string("standard output: ") + std::strerror(errno));
    return code;
  } catch (const Error& error) {
    return report(error, command.session.verbose);
  }
}

}  // namespace
}  // namespace flashjit::cli

int main(int argc, char** argv) {
  try {
    return flashjit::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashjit: %s\n", error.what());
    return flashjit::cli::kError;
  }
}
