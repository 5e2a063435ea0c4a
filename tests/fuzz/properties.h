// SPDX-License-Identifier: Apache-2.0
// What must hold for any bytes that the cache and the emulator are given. The fuzzers call these with bytes of their
// own, the test fuzz_corpus with those that are kept. Each throws std::logic_error when something does not hold.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cache/bundle_layer.h"
#include "cache/bytes.h"
#include "cache/entry_name.h"
#include "flashjit/emulator.h"

namespace flashjit::fuzz {

inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// --- Names of files
// ---------------------------------------------------------------------------------------------------

inline void check_name(std::string_view bytes) {
  const auto key = cache::parse_file_name(bytes);
  if (!key) return;
  require(cache::is_valid(*key), "a parsed name has valid parts");
  require(cache::file_of(*key) == bytes, "a parsed name is the name of its key");
  require(cache::path_of(*key).ends_with(bytes), "a path ends with the name");
}

// --- Entries
// ----------------------------------------------------------------------------------------------------------

inline void check_decoding(std::string_view bytes) {
  const auto entry = cache::decode(bytes);
  const auto facts = cache::decode_facts(bytes.substr(0, cache::kMaxFactsEnd));
  if (!entry) return;
  require(cache::encode(*entry) == bytes, "an entry has one spelling");
  require(facts == entry->facts, "the start of an entry has its facts");
}

constexpr std::size_t kPreambleBytes = 24;  // of entries and of bundles

// The same with the lengths and the checksum that its header asks for: no fuzzer would find these by itself. The header
// ends with the first brace.
inline std::string with_true_sums_of_entry(std::string_view entry) {
  const std::size_t header_end = entry.find('}', kPreambleBytes) + 1;
  if (header_end == 0 || entry.size() < header_end + cache::kChecksumBytes) return std::string(entry);
  const std::string_view content = entry.substr(kPreambleBytes, entry.size() - kPreambleBytes - cache::kChecksumBytes);
  std::string mended(entry.substr(0, 12));
  cache::append(mended, static_cast<std::uint32_t>(header_end - kPreambleBytes));
  cache::append(mended, static_cast<std::uint64_t>(content.size() - (header_end - kPreambleBytes)));
  mended += content;
  return mended + cache::checksum_of(mended);
}

inline void check_entry(std::string_view bytes) {
  check_decoding(bytes);
  check_decoding(with_true_sums_of_entry(bytes));
}

// --- Bundles
// ----------------------------------------------------------------------------------------------------------

// Whether every member is intact.
inline bool check_members(const cache::Bundle& bundle) {
  bool intact = true;
  for (const auto& member : bundle.members()) {
    require(bundle.find(member.name) == &member, "a member is found by its name");
    const auto bytes = bundle.read(member), start = bundle.read_start(member, member.bytes);
    require(start && start->size() == member.bytes, "a member lies within the bundle");
    require(!bytes || bytes == start, "a member's bytes are those at its place");
    intact = intact && bytes;
  }
  return intact;
}

inline void check_layer(std::string_view bundle) {
  cache::BundleLayer layer(bundle, "fuzzed");
  require(layer.problem().empty(), "what opens as a bundle opens as a layer");
  for (const cache::StoredEntry& stored : layer.list()) {
    auto key = cache::parse_file_name(stored.name + std::string(cache::kEntrySuffix));
    require(key.has_value(), "what is listed has an entry's name");
    const auto bytes = stored.read();
    const auto expected = bytes ? cache::decode_for(*key, *bytes) : std::nullopt;
    const cache::Lookup lookup = layer.find(*key);
    require(lookup.entry == expected, "what is found is what is listed");
    require(lookup.damaged == !expected, "what is listed and not found is damaged");
    require(!expected || stored.facts() == expected->facts, "the facts of an intact entry are those at its start");
    key->compiler.clear();
    require(!expected || layer.find(*key).entry, "what is found for one compiler is found for any");
  }
}

// The same members with true digests.
inline std::string bundled_anew(const cache::Bundle& bundle) {
  std::vector<cache::NewMember> members;
  for (const auto& member : bundle.members()) {
    members.push_back({member.name, bundle.read_start(member, member.bytes).value()});
  }
  return cache::encode_bundle(std::move(members));
}

inline void check_opening(std::string_view bytes) {
  std::string problem;
  const auto bundle = cache::Bundle::open(bytes, "fuzzed", problem);
  require((bundle == nullptr) == problem.starts_with("fuzzed: "), "what does not open has a problem");
  if (!bundle) return;
  const bool intact = check_members(*bundle);
  check_layer(bytes);
  const std::string anew = bundled_anew(*bundle);
  require(!intact || anew == bytes, "a bundle has one spelling");
  const auto reopened = cache::Bundle::open(anew, "anew", problem);
  require(reopened && check_members(*reopened), "what is bundled is intact");
  check_layer(anew);
}

// The bytes of content that the manifest tells, if they are few.
inline std::uint64_t told_bytes(std::string_view manifest) {
  const auto json = nlohmann::json::parse(manifest, nullptr, false);
  std::uint64_t sum = 0;
  if (!json.is_object() || !json.contains("members")) return sum;
  for (const auto& member : json["members"]) {
    if (!member.is_object() || !member.contains("bytes") || !member["bytes"].is_number_unsigned()) continue;
    const auto bytes = member["bytes"].get<std::uint64_t>();
    if (bytes < (1 << 16) && sum < (1 << 16)) sum += bytes;
  }
  return sum;
}

// The same with the lengths and the checksum that its manifest asks for, and with as much content as the manifest
// tells. The manifest ends with the first "]}".
inline std::string with_true_sums_of_bundle(std::string_view bundle, bool with_told_content) {
  const std::size_t manifest_end = bundle.find("]}", kPreambleBytes) + 2;
  const std::size_t content_begin = manifest_end + cache::kChecksumBytes;
  if (manifest_end == 1 || bundle.size() < content_begin) return std::string(bundle);
  const std::string_view manifest = bundle.substr(kPreambleBytes, manifest_end - kPreambleBytes);
  std::string content(bundle.substr(content_begin));
  if (with_told_content) content.resize(told_bytes(manifest));
  std::string mended(bundle.substr(0, 12));
  cache::append(mended, static_cast<std::uint32_t>(manifest.size()));
  cache::append(mended, static_cast<std::uint64_t>(content_begin + content.size()));
  mended += manifest;
  mended += cache::checksum_of(mended);
  return mended + content;
}

inline void check_bundle(std::string_view bytes) {
  check_opening(bytes);
  for (const bool with_told_content : {false, true}) check_opening(with_true_sums_of_bundle(bytes, with_told_content));
}

// --- PTX
// ----------------------------------------------------------------------------------------------------------------

// Any kernel of one or two pointers ends, with findings or without, or has a launch that it cannot have.
inline void check_run(const emulator::Program& program, const std::string& entry) {
  std::vector<std::uint64_t> in(1024), out(1024);
  emulator::Memory memory;
  memory.add_read_only("in", in.data(), in.size() * sizeof in[0]);
  memory.add("out", out.data(), out.size() * sizeof out[0]);
  emulator::Launch launch;
  launch.block.x = 32;
  launch.most_instructions = 1000;
  for (const int pointers : {1, 2}) {
    if (pointers == 1)
      launch.set_parameters(out.data());
    else
      launch.set_parameters(in.data(), out.data());
    try {
      program.run(entry, launch, memory);
    } catch (const std::invalid_argument&) {
    }
  }
}

// Text is a program or is refused with its line; nothing else comes of it.
inline void check_ptx(std::string_view text) {
  try {
    const emulator::Program program{std::string(text)};
    for (const std::string& entry : program.entries()) check_run(program, entry);
  } catch (const emulator::ParseError& error) {
    const auto lines = static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
    require(error.place.ptx_line >= 1 && error.place.ptx_line <= lines, "a refusal names a line of the text");
    require(std::string_view(error.what()).starts_with("PTX line "), "a refusal begins with its line");
  }
}

}  // namespace flashjit::fuzz
