// SPDX-License-Identifier: Apache-2.0
#include "cache/entry.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cache/bytes.h"

namespace flashjit::cache {
namespace {

constexpr std::string_view kEntryMagic = "FLASHJIT";
constexpr std::uint32_t kEntryVersion = 1;
constexpr std::size_t kEntryPreambleBytes = kEntryMagic.size() + 4 + 4 + 8;

struct Lengths {
  std::uint64_t header = 0, payload = 0;
};

std::optional<Lengths> read_preamble(std::string_view bytes) {
  if (bytes.size() < kEntryPreambleBytes || !bytes.starts_with(kEntryMagic)) return std::nullopt;
  if (integer_at<std::uint32_t>(bytes, kEntryMagic.size()) != kEntryVersion) return std::nullopt;
  const Lengths lengths{integer_at<std::uint32_t>(bytes, kEntryMagic.size() + 4),
                        integer_at<std::uint64_t>(bytes, kEntryMagic.size() + 8)};
  if (lengths.header > kMaxFactsEnd - kEntryPreambleBytes) return std::nullopt;
  return lengths;
}

std::optional<Facts> parse_header(std::string_view text) {
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
  if (!header.is_object()) return std::nullopt;
  Facts facts;
  for (const auto& [name, value] : header.items()) {
    if (!value.is_string()) return std::nullopt;
    facts[name] = value.get<std::string>();
  }
  // One spelling only: no spaces, no repeated names, no other order.
  if (header.dump() != text) return std::nullopt;
  return facts;
}

}  // namespace

std::string encode(const Entry& entry) {
  const std::string header = nlohmann::json(entry.facts).dump();
  if (header.size() > kMaxFactsEnd - kEntryPreambleBytes) throw std::length_error("the facts of an entry are too long");
  const std::size_t payload_limit = kMaxEntryBytes - kEntryPreambleBytes - header.size() - kChecksumBytes;
  if (entry.payload.size() > payload_limit) throw std::length_error("the payload of an entry is too long");
  std::string bytes;
  bytes.reserve(kEntryPreambleBytes + header.size() + entry.payload.size() + kChecksumBytes);
  bytes += kEntryMagic;
  append(bytes, kEntryVersion);
  append(bytes, static_cast<std::uint32_t>(header.size()));
  append(bytes, static_cast<std::uint64_t>(entry.payload.size()));
  bytes += header;
  bytes += entry.payload;
  bytes += checksum_of(bytes);
  return bytes;
}

std::optional<Entry> decode(std::string_view bytes) {
  if (bytes.size() < kEntryPreambleBytes + kChecksumBytes || bytes.size() > kMaxEntryBytes) return std::nullopt;
  const auto lengths = read_preamble(bytes);
  if (!lengths) return std::nullopt;
  const std::uint64_t content_bytes = bytes.size() - kEntryPreambleBytes - kChecksumBytes;
  // Subtracted rather than added, so that no length can overflow.
  if (lengths->header > content_bytes || lengths->payload != content_bytes - lengths->header) return std::nullopt;
  const std::string_view checked = bytes.substr(0, bytes.size() - kChecksumBytes);
  if (checksum_of(checked) != bytes.substr(checked.size())) return std::nullopt;
  auto facts = parse_header(bytes.substr(kEntryPreambleBytes, lengths->header));
  if (!facts) return std::nullopt;
  return Entry{std::move(*facts), std::string(bytes.substr(kEntryPreambleBytes + lengths->header, lengths->payload))};
}

std::optional<Facts> decode_facts(std::string_view start) {
  const auto lengths = read_preamble(start);
  if (!lengths || lengths->header > start.size() - kEntryPreambleBytes) return std::nullopt;
  return parse_header(start.substr(kEntryPreambleBytes, lengths->header));
}

}  // namespace flashjit::cache
