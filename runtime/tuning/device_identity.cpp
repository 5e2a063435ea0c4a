// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/device_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace flashjit {
namespace {

constexpr std::size_t kMaxNameInSlug = 100;  // of the 200 bytes that a folder's name may have

// Lower case; whatever a folder's name may not have becomes a dash, several of them one.
std::string words_of(const std::string& name) {
  std::string words;
  for (const char c : name) {
    const bool is_capital = c >= 'A' && c <= 'Z';
    const bool is_kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || (c == '.' && !words.empty());
    if (is_capital) {
      words += static_cast<char>(c - 'A' + 'a');
    } else if (is_kept) {
      words += c;
    } else if (!words.empty() && words.back() != '-') {
      words += '-';
    }
  }
  words.resize(std::min(words.size(), kMaxNameInSlug));
  while (!words.empty() && words.back() == '-') words.pop_back();
  return words.empty() ? "gpu" : words;
}

int rounded(std::int64_t bytes, std::int64_t unit) { return static_cast<int>((bytes + unit / 2) / unit); }

}  // namespace

bool operator==(const DeviceIdentity& a, const DeviceIdentity& b) noexcept {
  return a.name == b.name && a.architecture == b.architecture && a.sm_count == b.sm_count &&
         a.memory_gib == b.memory_gib && a.l2_mib == b.l2_mib && a.sm_clock_mhz == b.sm_clock_mhz &&
         a.memory_clock_mhz == b.memory_clock_mhz && a.memory_bus_bits == b.memory_bus_bits;
}

std::string slug(const DeviceIdentity& device) {
  return fmt::format("{}-{}-{}sm-{}g-{}m-{}mhz-{}mhz-{}b", words_of(device.name), words_of(device.architecture),
                     device.sm_count, device.memory_gib, device.l2_mib, device.sm_clock_mhz, device.memory_clock_mhz,
                     device.memory_bus_bits);
}

namespace runtime {

DeviceIdentity identify(const DeviceInfo& info) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20, kGiB = std::int64_t{1} << 30;
  DeviceIdentity device;
  device.name = info.name;
  device.architecture = info.architecture;
  device.sm_count = info.sm_count;
  device.memory_gib = rounded(info.memory_bytes, kGiB);
  device.l2_mib = rounded(info.l2_bytes, kMiB);
  device.sm_clock_mhz = info.sm_clock_mhz;
  device.memory_clock_mhz = info.memory_clock_mhz;
  device.memory_bus_bits = info.memory_bus_bits;
  return device;
}

}  // namespace runtime
}  // namespace flashjit
