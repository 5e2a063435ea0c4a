// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/dropout.h"

#include <cmath>

#include "runtime/call/philox.h"
#include "runtime/support/reject.h"

namespace flashjit {
namespace {

// --- Random numbers in the order of the f16 that they are
// --------------------------------------------------------------

constexpr std::uint32_t kNumbers = 1 << 16;
constexpr std::uint16_t kInfinity = 0x7c00, kNegativeZero = 0x8000, kNan = 0x7e00;
constexpr std::uint32_t kPositive = kInfinity + 1;  // with 0 and infinity

// Whether the number is at least the threshold: as integers, because an f16 without its sign is ordered like them.
constexpr bool is_at_least(std::uint16_t number, std::uint16_t threshold) noexcept {
  const auto order = [](std::uint16_t bits) {
    const int magnitude = bits & 0x7fff;
    return bits & kNegativeZero ? -magnitude : magnitude;
  };
  const auto is_nan = [](std::uint16_t bits) { return (bits & 0x7fff) > kInfinity; };
  return !is_nan(number) && !is_nan(threshold) && order(number) >= order(threshold);
}

// Of all numbers, so many are at least the threshold; up to 2^15. There is none for as many as are positive: there are
// two zeros. Takes the nearer neighbour of `wanted`.
struct Counted {
  std::uint16_t threshold;
  std::uint32_t count;
};
Counted threshold_of(double wanted) {
  auto count = static_cast<std::uint32_t>(std::lround(wanted));
  if (count == kPositive) count = wanted < kPositive ? kPositive - 1 : kPositive + 1;
  if (count == 0) return {kNan, 0};
  if (count < kPositive) return {static_cast<std::uint16_t>(kPositive - count), count};
  return {static_cast<std::uint16_t>(kNegativeZero + (count - kPositive - 1)), count};
}

// How the numbers are split.
struct Split {
  DropoutThreshold threshold;
  std::uint32_t kept;
};
Split split_of(double probability) {
  runtime::check({probability});
  if (probability <= 0.5) {
    const Counted dropped = threshold_of(probability * kNumbers);
    return {{dropped.threshold, true}, kNumbers - dropped.count};
  }
  const Counted kept = threshold_of(std::fmax(1.0, (1 - probability) * kNumbers));
  return {{kept.threshold, false}, kept.count};
}

}  // namespace

namespace runtime {

void check(const Dropout& dropout) {
  if (!(dropout.probability >= 0 && dropout.probability < 1))
    reject("dropout: probability must be at least 0 and below 1, was {}", dropout.probability);
}

DropoutRow::DropoutRow(const Dropout& dropout, std::int64_t num_heads_q, std::int64_t batch, std::int64_t head,
                       std::int64_t query)
    : dropout_(dropout),
      threshold_(dropout_threshold(dropout.probability)),
      row_of_heads_(lower_word(static_cast<std::uint64_t>(batch * num_heads_q + head))),
      query_(lower_word(static_cast<std::uint64_t>(query))) {}

bool DropoutRow::keeps(std::int64_t key) const noexcept {
  constexpr std::uint32_t kBitsOfBlock = 1 | 8 | 16;  // of a key: which of a block's numbers is its
  const std::uint32_t j = lower_word(static_cast<std::uint64_t>(key));
  const PhiloxWords block =
      philox({query_, j & ~kBitsOfBlock, row_of_heads_, lower_word(dropout_.offset)},
             {lower_word(dropout_.seed), upper_word(dropout_.seed) ^ upper_word(dropout_.offset)});
  const auto number = static_cast<std::uint16_t>(block[j / 8 % 4] >> 16 * (j % 2));
  return is_at_least(number, threshold_.bits) != threshold_.keeps_below;
}

}  // namespace runtime

DropoutThreshold dropout_threshold(double probability) { return split_of(probability).threshold; }

double kept_share(double probability) { return static_cast<double>(split_of(probability).kept) / kNumbers; }

bool keeps(const Dropout& dropout, std::int64_t num_heads_q, std::int64_t batch, std::int64_t head, std::int64_t query,
           std::int64_t key) {
  return runtime::DropoutRow(dropout, num_heads_q, batch, head, query).keeps(key);
}

}  // namespace flashjit
