// SPDX-License-Identifier: Apache-2.0
// What an engine's options are in the environment that this program has, a line each. A test makes it set-uid.
#include <cstdio>
#include <string>

#include "flashjit/engine.h"

// AddressSanitizer asks this. Its search for leaks needs to trace the process, which nobody may with a set-uid program.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

int main() {
  const flashjit::EngineOptions options = flashjit::EngineOptions::from_environment();
  std::string lines;
  for (const std::string& text : {std::string(to_string(options.policy)), options.cache_directory, options.nvrtc_path,
                                  options.template_directory, options.emulate})
    lines += text + "\n";
  for (const auto* list : {&options.nvrtc_directories, &options.system_cache_directories, &options.bundles})
    for (const std::string& text : *list) lines += text + "\n";
  if (options.log) lines += "a log\n";
  std::fputs(lines.c_str(), stdout);
  return 0;
}
