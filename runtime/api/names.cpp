// SPDX-License-Identifier: Apache-2.0
// Spellings of the public enums that belong to the engine and its tuning, and the version.
#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "flashjit/tuning.h"
#include "flashjit/version.h"

#define FLASHJIT_TEXT(value) #value
#define FLASHJIT_DOTTED(major, minor, patch) FLASHJIT_TEXT(major) "." FLASHJIT_TEXT(minor) "." FLASHJIT_TEXT(patch)

namespace flashjit {

const char* version() noexcept {
  return FLASHJIT_DOTTED(FLASHJIT_VERSION_MAJOR, FLASHJIT_VERSION_MINOR, FLASHJIT_VERSION_PATCH);
}

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::no_driver:
      return "no_driver";
    case ErrorCode::no_device:
      return "no_device";
    case ErrorCode::no_compiler:
      return "no_compiler";
    case ErrorCode::compile_failed:
      return "compile_failed";
    case ErrorCode::cache_miss:
      return "cache_miss";
    case ErrorCode::driver:
      return "driver";
    case ErrorCode::io:
      return "io";
    case ErrorCode::kernel_fault:
      return "kernel_fault";
    case ErrorCode::communication:
      return "communication";
  }
  return "unknown";
}

const char* to_string(Policy policy) noexcept {
  switch (policy) {
    case Policy::compile:
      return "compile";
    case Policy::cache_only:
      return "cache_only";
    case Policy::off:
      return "off";
  }
  return "unknown";
}

Policy parse_policy(std::string_view text) {
  for (const Policy policy : {Policy::compile, Policy::cache_only, Policy::off}) {
    if (text == to_string(policy)) return policy;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("policy: must be compile, cache_only or off, was {}", text));
}

std::uint64_t parse_size(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  constexpr std::size_t kUnitBits = 10;
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  const std::size_t power = unit == end ? 0 : kUnits.find(*unit) + 1;  // 0 as well when it is no unit
  const bool spelled = error == std::errc{} && end - unit == (power == 0 ? 0 : 1);
  const std::size_t shift = power * kUnitBits;
  if (!spelled || value == 0 || value > std::numeric_limits<std::uint64_t>::max() >> shift) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("must be bytes, or a number with K, M, G or T, and more than 0, was {}", text));
  }
  return value << shift;
}

const char* to_string(KernelInfo::Origin origin) noexcept {
  switch (origin) {
    case KernelInfo::Origin::compiled:
      return "compiled";
    case KernelInfo::Origin::disk:
      return "disk";
    case KernelInfo::Origin::bundle:
      return "bundle";
    case KernelInfo::Origin::memory:
      return "memory";
  }
  return "unknown";
}

const char* to_string(CacheLayer layer) noexcept {
  switch (layer) {
    case CacheLayer::user:
      return "user";
    case CacheLayer::system:
      return "system";
    case CacheLayer::bundle:
      return "bundle";
    case CacheLayer::embedded:
      return "embedded";
  }
  return "unknown";
}

const char* to_string(TuningPolicy policy) noexcept {
  switch (policy) {
    case TuningPolicy::off:
      return "off";
    case TuningPolicy::recorded:
      return "recorded";
    case TuningPolicy::on_first_use:
      return "on_first_use";
    case TuningPolicy::frozen:
      return "frozen";
  }
  return "unknown";
}

TuningPolicy parse_tuning_policy(std::string_view text) {
  for (const TuningPolicy policy :
       {TuningPolicy::off, TuningPolicy::recorded, TuningPolicy::on_first_use, TuningPolicy::frozen}) {
    if (text == to_string(policy)) return policy;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("tuning: must be off, recorded, on_first_use or frozen, was {}", text));
}

const char* to_string(TunedCandidate::Outcome outcome) noexcept {
  switch (outcome) {
    case TunedCandidate::Outcome::measured:
      return "measured";
    case TunedCandidate::Outcome::stopped:
      return "stopped";
    case TunedCandidate::Outcome::failed:
      return "failed";
    case TunedCandidate::Outcome::spills:
      return "spills";
    case TunedCandidate::Outcome::duplicate:
      return "duplicate";
    case TunedCandidate::Outcome::wrong:
      return "wrong";
    case TunedCandidate::Outcome::untried:
      return "untried";
  }
  return "unknown";
}

}  // namespace flashjit
