// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cache/bytes.h"
#include "cache/entry.h"
#include "cache/name_character.h"
#include "flashjit/error.h"

namespace flashjit::cache {
namespace {

constexpr std::string_view kBundleMagic = "FJBUNDLE";
constexpr std::uint32_t kBundleVersion = 1;
constexpr std::size_t kBundlePreambleBytes = kBundleMagic.size() + 4 + 4 + 8;
constexpr std::size_t kMaxManifestBytes = std::size_t{16} << 20;  // some 100,000 members
constexpr std::size_t kMaxMemberPartBytes = 255;                  // as in file systems

using Members = std::vector<Bundle::Member>;

bool is_member_part(std::string_view text) {
  return !text.empty() && text.size() <= kMaxMemberPartBytes && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), is_name_character);
}

// A relative path that stays below where it begins.
bool is_member_name(std::string_view name) {
  for (std::size_t slash; (slash = name.find('/')) != std::string_view::npos; name.remove_prefix(slash + 1)) {
    if (!is_member_part(name.substr(0, slash))) return false;
  }
  return is_member_part(name);
}

bool is_digest(std::string_view text) {
  constexpr std::size_t kDigits = 32;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_sound(const Bundle::Member& member) {
  return is_member_name(member.name) && is_digest(member.digest) && member.bytes <= kMaxEntryBytes;
}

std::string manifest_of(const Members& members) {
  auto list = nlohmann::json::array();
  for (const auto& member : members) {
    list.push_back({{"bytes", member.bytes}, {"digest", member.digest}, {"name", member.name}});
  }
  return nlohmann::json{{"members", std::move(list)}}.dump();
}

std::optional<Bundle::Member> parse_member(const nlohmann::json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto bytes = json.find("bytes"), digest = json.find("digest"), name = json.find("name");
  if (bytes == json.end() || digest == json.end() || name == json.end()) return std::nullopt;
  if (!bytes->is_number_unsigned() || !digest->is_string() || !name->is_string()) return std::nullopt;
  return Bundle::Member{name->get<std::string>(), 0, bytes->get<std::uint64_t>(), digest->get<std::string>()};
}

std::optional<Members> parse_manifest(std::string_view text) {
  const nlohmann::json manifest = nlohmann::json::parse(text, nullptr, false);
  if (!manifest.is_object() || !manifest.contains("members")) return std::nullopt;
  const nlohmann::json& list = manifest["members"];
  if (!list.is_array()) return std::nullopt;
  Members members;
  for (const auto& json : list) {
    auto member = parse_member(json);
    if (!member || !is_sound(*member)) return std::nullopt;
    // By name, and each name once.
    if (!members.empty() && member->name <= members.back().name) return std::nullopt;
    members.push_back(std::move(*member));
  }
  // One spelling only: no spaces, no other fields.
  if (manifest_of(members) != text) return std::nullopt;
  return members;
}

// Members lie back to back; false when they do not end where the bundle does. No manifest has so many members, nor any
// of them so many bytes, that the sum could overflow.
bool place(Members& members, std::uint64_t begin, std::uint64_t end) {
  for (auto& member : members) {
    member.offset = begin;
    begin += member.bytes;
  }
  return begin == end;
}

[[noreturn]] void refuse_member(const NewMember& member, const char* requirement) {
  throw Error(ErrorCode::invalid_argument, fmt::format("bundle: member \"{}\" must {}", member.name, requirement));
}

void require_sound(const std::vector<NewMember>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (!is_member_name(sorted[i].name)) refuse_member(sorted[i], "be a relative path of a-z 0-9 _ . -");
    if (i > 0 && sorted[i].name == sorted[i - 1].name) refuse_member(sorted[i], "be there once, is there twice");
    if (sorted[i].bytes.size() > kMaxEntryBytes) refuse_member(sorted[i], "be of 256 MiB at most");
  }
}

}  // namespace

std::string encode_bundle(std::vector<NewMember> members) {
  std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  require_sound(members);
  Members listed;
  std::uint64_t content_bytes = 0;
  for (const auto& member : members) {
    listed.push_back({member.name, 0, member.bytes.size(), digest_of(member.bytes).hex()});
    content_bytes += member.bytes.size();
  }
  const std::string manifest = manifest_of(listed);
  if (manifest.size() > kMaxManifestBytes) {
    throw Error(ErrorCode::invalid_argument, fmt::format("bundle: must have fewer members, has {}", members.size()));
  }
  const std::uint64_t bundle_bytes = kBundlePreambleBytes + manifest.size() + kChecksumBytes + content_bytes;
  std::string bytes;
  bytes.reserve(bundle_bytes);
  bytes += kBundleMagic;
  append(bytes, kBundleVersion);
  append(bytes, static_cast<std::uint32_t>(manifest.size()));
  append(bytes, bundle_bytes);
  bytes += manifest;
  bytes += checksum_of(bytes);
  for (const auto& member : members) bytes += member.bytes;
  return bytes;
}

// Where a bundle's bytes come from.
class Bundle::Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;
  // All of the bytes, or false.
  virtual bool read_at(std::uint64_t offset, char* buffer, std::size_t bytes) const = 0;

  std::optional<std::string> read(std::uint64_t offset, std::size_t bytes) const {
    std::string text(bytes, '\0');
    if (!read_at(offset, text.data(), bytes)) return std::nullopt;
    return text;
  }
};

class Bundle::FileSource : public Bundle::Source {
 public:
  FileSource(FileSystem& files, Descriptor file, std::uint64_t size)
      : files_(files), file_(std::move(file)), size_(size) {}
  std::uint64_t size() const override { return size_; }
  bool read_at(std::uint64_t offset, char* buffer, std::size_t bytes) const override {
    while (bytes > 0) {
      const ssize_t count = retry([&] { return files_.read_at(file_.value(), buffer, bytes, offset); });
      if (count <= 0) return false;
      buffer += count;
      bytes -= static_cast<std::size_t>(count);
      offset += static_cast<std::uint64_t>(count);
    }
    return true;
  }

 private:
  FileSystem& files_;
  const Descriptor file_;
  const std::uint64_t size_;
};

class Bundle::MemorySource : public Bundle::Source {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  bool read_at(std::uint64_t offset, char* buffer, std::size_t bytes) const override {
    return bytes_.copy(buffer, bytes, offset) == bytes;
  }

 private:
  const std::string_view bytes_;
};

Bundle::Bundle(std::string name, std::unique_ptr<const Source> source)
    : name_(std::move(name)), source_(std::move(source)) {}

Bundle::~Bundle() = default;

std::unique_ptr<Bundle> Bundle::open(const std::filesystem::path& file, std::string& problem, FileSystem& files) {
  const auto refuse = [&](const std::string& why) {
    problem = fmt::format("{}: {}", file.string(), why);
    return nullptr;
  };
  // Without O_NONBLOCK a FIFO of that name would hold us up.
  Descriptor descriptor(files, AT_FDCWD, file.c_str(), O_RDONLY | O_NONBLOCK);
  if (!descriptor.is_open()) return refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat status {};
  if (files.status(descriptor.value(), status) != 0) {
    return refuse(fmt::format("cannot be examined: {}", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) return refuse("must be a regular file");
  if (status.st_mode & S_IWOTH) {
    return refuse(fmt::format("must not be writable by others, has mode {:04o}", status.st_mode & 07777));
  }
  auto source = std::make_unique<FileSource>(files, std::move(descriptor), static_cast<std::uint64_t>(status.st_size));
  std::unique_ptr<Bundle> bundle(new Bundle(file.string(), std::move(source)));
  const std::string why = bundle->read_manifest();
  return why.empty() ? std::move(bundle) : refuse(why);
}

std::unique_ptr<Bundle> Bundle::open(std::string_view bytes, const std::string& name, std::string& problem) {
  std::unique_ptr<Bundle> bundle(new Bundle(name, std::make_unique<MemorySource>(bytes)));
  const std::string why = bundle->read_manifest();
  if (why.empty()) return bundle;
  problem = fmt::format("{}: {}", name, why);
  return nullptr;
}

std::string Bundle::read_manifest() {
  const char* const no_bundle = "must be a flashjit bundle, is none";
  const std::uint64_t size = source_->size();
  if (size < kBundlePreambleBytes + kChecksumBytes) return no_bundle;
  const auto preamble = source_->read(0, kBundlePreambleBytes);
  if (!preamble) return "cannot be read";
  if (!preamble->starts_with(kBundleMagic)) return no_bundle;
  const auto version = integer_at<std::uint32_t>(*preamble, kBundleMagic.size());
  if (version != kBundleVersion) return fmt::format("must be of version {}, is of {}", kBundleVersion, version);
  const std::uint64_t manifest_bytes = integer_at<std::uint32_t>(*preamble, kBundleMagic.size() + 4);
  const std::uint64_t bundle_bytes = integer_at<std::uint64_t>(*preamble, kBundleMagic.size() + 8);
  if (bundle_bytes != size) return fmt::format("is damaged: must have {} bytes, has {}", bundle_bytes, size);
  if (manifest_bytes > std::min<std::uint64_t>(kMaxManifestBytes, size - kBundlePreambleBytes - kChecksumBytes)) {
    return "is damaged: the manifest's length is impossible";
  }
  const std::uint64_t checked_bytes = kBundlePreambleBytes + manifest_bytes;
  const auto start = source_->read(0, checked_bytes + kChecksumBytes);
  if (!start) return "cannot be read";
  const std::string_view checked = std::string_view(*start).substr(0, checked_bytes);
  if (checksum_of(checked) != start->substr(checked_bytes)) return "is damaged: the manifest's checksum is wrong";
  auto members = parse_manifest(checked.substr(kBundlePreambleBytes));
  if (!members || !place(*members, start->size(), size)) return "is damaged: the manifest is not as it must be";
  members_ = std::move(*members);
  return {};
}

const Bundle::Member* Bundle::find(std::string_view name) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), name,
                                   [](const Member& member, std::string_view wanted) { return member.name < wanted; });
  return it != members_.end() && it->name == name ? &*it : nullptr;
}

std::optional<std::string> Bundle::read(const Member& member) const {
  auto bytes = source_->read(member.offset, member.bytes);
  if (bytes && digest_of(*bytes).hex() != member.digest) return std::nullopt;
  return bytes;
}

std::optional<std::string> Bundle::read_start(const Member& member, std::size_t limit) const {
  return source_->read(member.offset, std::min<std::uint64_t>(member.bytes, limit));
}

}  // namespace flashjit::cache
