// SPDX-License-Identifier: Apache-2.0
#include "cache/tag.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/own_files.h"
#include "cache/text.h"

namespace flashjit::cache {
namespace {

// The first line is what https://bford.info/cachedir/ asks for; with the second the tag is ours and nobody else's.
constexpr std::string_view kTagStart =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This directory is the cache of flashjit";
constexpr std::string_view kTagRest =
    ": what is in it can be compiled or measured again.\n"
    "# Backup programs may leave it out, see https://bford.info/cachedir/\n";
constexpr std::size_t kMaxTagBytes = 4096;

bool has_our_tag(const Directory& directory) {
  return directory.read(kTagFile, kMaxTagBytes).bytes.starts_with(kTagStart);
}

// The first file that is not the cache's, of a directory in which nothing is. Empty when there is no such file.
std::string find_foreign(const Directory& directory, const Survey& found) {
  for (const OwnFile& own : found.own) {
    if (is_own(directory, own)) return {};
  }
  if (!found.own.empty()) return (std::filesystem::path(found.own.front().folder) / found.own.front().file.name);
  return found.others.empty() ? std::string() : found.others.front();
}

std::string why_not_ours(const Directory& directory, const std::optional<Survey>& found) {
  if (!found) return fmt::format("{}: cannot be read: {}", directory.path().string(), message_of(errno));
  const std::string foreign = find_foreign(directory, *found);
  if (foreign.empty()) return {};
  return without_control_characters(
      fmt::format("{}: must be empty or a cache of flashjit, has no {} of flashjit but {}", directory.path().string(),
                  kTagFile, foreign));
}

}  // namespace

std::string why_not_ours(const Directory& directory) {
  return has_our_tag(directory) ? std::string() : why_not_ours(directory, survey(directory));
}

std::string claim(const Directory& directory) {
  if (has_our_tag(directory)) return {};
  const auto found = survey(directory);
  std::string problem = why_not_ours(directory, found);
  // Without the tag the cache works as well, so it does not matter where that cannot be written. One that is not ours
  // stays what it is.
  if (problem.empty() && !found->has_tag) directory.publish(kTagFile, std::string(kTagStart).append(kTagRest));
  return problem;
}

}  // namespace flashjit::cache
