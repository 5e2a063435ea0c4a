// SPDX-License-Identifier: Apache-2.0
#include "cache/own_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/entry_lock.h"
#include "cache/entry_name.h"
#include "cache/record_path.h"
#include "cache/totals.h"

namespace flashjit::cache {
namespace {

using Kind = OwnFile::Kind;

constexpr std::size_t kHeadingBytes = 1024;  // a source's heading is within
// What a new file system has.
constexpr std::string_view kLostAndFound = "lost+found";

// Nothing for names that the cache does not give. Folder: as in OwnFile.
std::optional<Kind> kind_of_name(const std::string& folder, std::string_view name) {
  if (const auto published = published_name(name)) {
    const bool is_tag = folder.empty() && *published == kTagFile;
    return is_tag || kind_of_name(folder, *published) ? std::optional(Kind::temporary) : std::nullopt;
  }
  if (folder.empty()) return name == kTotalsFile ? std::optional(Kind::lasting) : std::nullopt;
  if (folder == kFailedDirectory) return name.ends_with(kSourceSuffix) ? std::optional(Kind::lasting) : std::nullopt;
  const bool damaged = name.ends_with(kDamagedSuffix);
  if (damaged) name.remove_suffix(kDamagedSuffix.size());
  if (is_shard_name(folder)) {
    const auto key = parse_file_name(name);
    if (!key || shard_of(*key) != folder) return std::nullopt;
    return damaged ? Kind::damaged : Kind::entry;
  }
  if (!parse_record_path(folder + '/' + std::string(name))) return std::nullopt;
  return damaged ? Kind::damaged : Kind::lasting;
}

bool is_empty_lock(const FileStatus& file) { return file.name == kLockFile && file.regular && file.bytes == 0; }

std::string path_in(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder + '/' + name;
}

// Sorts what is in one folder, and gives the directories in it.
std::vector<std::string> sort_folder(std::vector<FileStatus> files, const std::string& folder, Survey& survey) {
  std::vector<std::string> directories;
  for (FileStatus& file : files) {
    if (file.directory) {
      directories.push_back(std::move(file.name));
    } else if (const auto kind = kind_of_name(folder, file.name)) {
      survey.own.push_back({*kind, folder, std::move(file)});
    } else if (folder.empty() && file.name == kTagFile) {
      survey.has_tag = true;
    } else if (!folder.empty() || !is_empty_lock(file)) {
      survey.others.push_back(path_in(folder, file.name));
    }
  }
  return directories;
}

void survey_folder(const Directory& at, const std::string& folder, Survey& survey) {
  if (!at.is_open() && at.problem().empty()) return;  // somebody has just removed it
  auto files = at.is_open() ? at.try_list() : std::nullopt;
  if (!files) {
    if (survey.problem.empty()) survey.problem = at.is_open() ? why_unread(at) : at.problem();
    survey.others.push_back(folder);
    return;
  }
  for (const std::string& name : sort_folder(std::move(*files), folder, survey)) {
    if (folder == kRecordsDirectory) {
      survey_folder(at.below(name), path_in(folder, name), survey);
    } else {
      survey.others.push_back(path_in(folder, name));
    }
  }
}

bool is_folder_name(std::string_view name) {
  return is_shard_name(name) || name == kFailedDirectory || name == kRecordsDirectory;
}

// The cache makes no such file, so it is left alone; but as long as it is there the folder cannot be made.
std::string why_in_the_way(const Directory& directory, const std::vector<FileStatus>& files) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [](const FileStatus& file) { return !file.directory && is_folder_name(file.name); });
  if (found == files.end()) return {};
  return fmt::format("{}: must be a directory of the cache, is a file or a link of others; move it away",
                     (directory.path() / found->name).string());
}

}  // namespace

std::string why_unread(const Directory& directory) {
  return fmt::format("{}: cannot be read: {}", directory.path().string(), message_of(errno));
}

std::optional<Survey> survey(const Directory& directory) {
  auto files = directory.try_list();
  if (!files) return std::nullopt;
  Survey survey;
  survey.problem = why_in_the_way(directory, *files);
  for (const std::string& name : sort_folder(std::move(*files), "", survey)) {
    if (is_folder_name(name)) {
      survey_folder(directory.below(name), name, survey);
    } else if (name != kLostAndFound) {
      survey.others.push_back(name);
    }
  }
  return survey;
}

bool is_own(const Directory& directory, const OwnFile& own) {
  if (own.kind == Kind::temporary) return true;
  if (own.folder.empty()) return holds_totals(directory);
  if (own.folder != kFailedDirectory) return true;
  const FileContent start = open_folder(directory, own.folder).read_start(own.file.name, kHeadingBytes);
  return start.bytes.find(kSourceHeading) != std::string::npos;
}

Directory open_folder(const Directory& directory, std::string_view folder) {
  const std::size_t slash = folder.find('/');
  Directory opened = directory.below(std::string(folder.substr(0, slash)));
  return slash == folder.npos ? std::move(opened) : opened.below(std::string(folder.substr(slash + 1)));
}

void remove_empty_folders(const Directory& directory) {
  const Directory records = directory.below(kRecordsDirectory);
  for (const FileStatus& device : records.list()) {
    if (device.directory) records.remove_below(device.name);
  }
  for (const FileStatus& folder : directory.list()) {
    if (folder.directory && is_folder_name(folder.name)) directory.remove_below(folder.name);
  }
}

}  // namespace flashjit::cache
