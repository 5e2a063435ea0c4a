// SPDX-License-Identifier: Apache-2.0
// Many files of a cache in one: see FORMAT.md, "Bundles".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_system.h"

namespace flashjit::cache {

inline constexpr std::string_view kBundleSuffix = ".fjb";

struct NewMember {
  std::string name;   // "ab/<name>.<inputs>.<compiler>.fjc"
  std::string bytes;  // at most kMaxEntryBytes
  friend bool operator==(const NewMember&, const NewMember&) = default;
};
// The bytes of a bundle: a function of the members alone, whatever their order. Throws Error(invalid_argument) when a
// name is not as FORMAT.md says or there twice, or when a member is too large.
std::string encode_bundle(std::vector<NewMember> members);

// An open bundle. Its manifest was verified when it was opened, a member is verified each time it is read. Thread-safe.
class Bundle {
 public:
  struct Member {
    std::string name;
    std::uint64_t offset = 0;  // in the bundle
    std::uint64_t bytes = 0;
    std::string digest;  // XXH3-128 of its bytes, 32 lower-case hexadecimal digits
  };

  // Null when it is no intact bundle of a known version; problem says why in one line that begins with the name.
  // Members are read when they are asked for, so that a large bundle costs no memory. The file must not be changed in
  // place while it is open, else its members are misses; replacing it by rename is fine.
  static std::unique_ptr<Bundle> open(const std::filesystem::path& file, std::string& problem,
                                      FileSystem& files = system_calls());
  // The bytes stay the caller's and must outlive the bundle.
  static std::unique_ptr<Bundle> open(std::string_view bytes, const std::string& name, std::string& problem);
  ~Bundle();

  const std::string& name() const { return name_; }                // the file's path, or what the caller calls it
  const std::vector<Member>& members() const { return members_; }  // by name
  const Member* find(std::string_view name) const;
  // Nothing when its bytes cannot be read or are damaged.
  std::optional<std::string> read(const Member& member) const;
  // The first bytes of a member, at most limit, not verified.
  std::optional<std::string> read_start(const Member& member, std::size_t limit) const;

 private:
  class Source;
  class FileSource;
  class MemorySource;

  Bundle(std::string name, std::unique_ptr<const Source> source);
  // Fills members_; what is wrong with the bytes, or nothing.
  std::string read_manifest();

  const std::string name_;
  const std::unique_ptr<const Source> source_;
  std::vector<Member> members_;
};

}  // namespace flashjit::cache
