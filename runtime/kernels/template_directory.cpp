// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels/template_directory.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "flashjit/error.h"

namespace flashjit::runtime {
namespace {

constexpr const char* kTemplateDirectory = "template_directory (FLASHJIT_TEMPLATE_DIR)";

}  // namespace

generator::Templates read_templates(const std::string& directory) {
  namespace fs = std::filesystem;
  generator::Templates::Files templates;
  std::error_code error;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".cuh") continue;
    std::ifstream file(it->path(), std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (!file)
      throw Error(ErrorCode::io, fmt::format("{}: {} must be readable", kTemplateDirectory, it->path().string()));
    templates.emplace(fs::relative(it->path(), directory).generic_string(), std::move(text));
  }
  if (error || templates.empty()) {
    throw Error(ErrorCode::io, fmt::format("{}: must hold *.cuh files, was {}{}{}", kTemplateDirectory, directory,
                                           error ? ": " : "", error ? error.message() : ""));
  }
  return generator::Templates(std::move(templates));
}

}  // namespace flashjit::runtime
