// SPDX-License-Identifier: Apache-2.0
#include "generator/templates.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "flashjit/error.h"
#include "generator/comments.h"

namespace flashjit::generator {
namespace {

constexpr std::string_view kInclude = "#include \"", kPragmaOnce = "#pragma once";

// Where the next line with a directive begins, from begin on; the end of the text when there is none.
std::size_t find_directive(std::string_view text, std::size_t begin) {
  std::size_t at = text.find('#', begin);
  while (at != std::string_view::npos && at != 0 && text[at - 1] != '\n') at = text.find('#', at + 1);
  return std::min(at, text.size());
}

// One template file without comments and with its includes put in place, each file once. #line keeps the files' own
// names and lines, so that an error of NVRTC and a line of a profile point into templates/.
void append_file(const Templates::Files& files, const std::string& path, std::set<std::string>& seen,
                 std::string& out) {
  if (!seen.insert(path).second) return;
  const auto file = files.find(path);
  if (file == files.end())  // never of those inside the library
    throw Error(ErrorCode::io, fmt::format("template_directory (FLASHJIT_TEMPLATE_DIR): must hold {}", path));
  out += fmt::format("#line 1 \"templates/{}\"\n", path);
  const std::string text = without_comments(file->second);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t directive = find_directive(text, begin);
    out.append(text, begin, directive - begin);
    begin = std::min(text.find('\n', directive), text.size() - 1) + 1;
    const auto line = std::string_view(text).substr(directive, begin - directive);
    if (line.starts_with(kInclude)) {
      const std::string_view name = line.substr(kInclude.size(), line.rfind('"') - kInclude.size());
      append_file(files, std::string(name), seen, out);
      const auto next_line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n') + 1;
      out += fmt::format("#line {} \"templates/{}\"\n", next_line, path);
    } else if (line.starts_with(kPragmaOnce)) {
      out += '\n';
    } else {
      out += line;
    }
  }
}

}  // namespace

struct Templates::State {
  const Files files;
  std::mutex mutex;  // of what follows
  std::map<std::vector<std::string>, std::shared_ptr<const std::string>> flattened;
};

Templates::Templates(Files files) : state_(std::make_shared<State>(std::move(files))) {}

const Templates::Files& Templates::files() const { return state_->files; }

std::shared_ptr<const std::string> Templates::flatten(const std::vector<std::string>& paths) const {
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<const std::string>& kept = state_->flattened[paths];
  if (!kept) {
    std::string out;
    std::set<std::string> seen;
    for (const std::string& path : paths) append_file(state_->files, path, seen, out);
    kept = std::make_shared<const std::string>(std::move(out));
  }
  return kept;
}

}  // namespace flashjit::generator
