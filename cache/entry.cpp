// SPDX-License-Identifier: Apache-2.0
#include "cache/entry.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "cache/digest.h"

namespace flashjit::cache {
namespace {

constexpr std::string_view kMagic = "FLASHJIT";
constexpr std::uint32_t kFormatVersion = 1;
constexpr std::size_t kPreambleBytes = kMagic.size() + 4 + 4 + 8;
constexpr std::size_t kChecksumBytes = 16;

template <typename Integer>
void append(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

// The caller has checked that bytes hold an Integer at this offset.
template <typename Integer>
Integer integer_at(std::string_view bytes, std::size_t offset) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<Integer>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  }
  return value;
}

std::string checksum_of(std::string_view bytes) {
  const Digest digest = digest_of(bytes);
  std::string checksum;
  append(checksum, digest.low);
  append(checksum, digest.high);
  return checksum;
}

std::optional<std::map<std::string, std::string>> parse_header(std::string_view text) {
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
  if (!header.is_object()) return std::nullopt;
  std::map<std::string, std::string> facts;
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
  std::string bytes;
  bytes.reserve(kPreambleBytes + header.size() + entry.payload.size() + kChecksumBytes);
  bytes += kMagic;
  append(bytes, kFormatVersion);
  append(bytes, static_cast<std::uint32_t>(header.size()));
  append(bytes, static_cast<std::uint64_t>(entry.payload.size()));
  bytes += header;
  bytes += entry.payload;
  bytes += checksum_of(bytes);
  return bytes;
}

std::optional<Entry> decode(std::string_view bytes) {
  if (bytes.size() < kPreambleBytes + kChecksumBytes || !bytes.starts_with(kMagic)) return std::nullopt;
  if (integer_at<std::uint32_t>(bytes, kMagic.size()) != kFormatVersion) return std::nullopt;
  const std::uint64_t header_bytes = integer_at<std::uint32_t>(bytes, kMagic.size() + 4);
  const std::uint64_t payload_bytes = integer_at<std::uint64_t>(bytes, kMagic.size() + 8);
  const std::uint64_t content_bytes = bytes.size() - kPreambleBytes - kChecksumBytes;
  // Subtracted rather than added, so that no length can overflow.
  if (header_bytes > content_bytes || payload_bytes != content_bytes - header_bytes) return std::nullopt;
  const std::string_view checked = bytes.substr(0, bytes.size() - kChecksumBytes);
  if (checksum_of(checked) != bytes.substr(checked.size())) return std::nullopt;
  auto facts = parse_header(bytes.substr(kPreambleBytes, header_bytes));
  if (!facts) return std::nullopt;
  return Entry{std::move(*facts), std::string(bytes.substr(kPreambleBytes + header_bytes, payload_bytes))};
}

}  // namespace flashjit::cache
