// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/cells.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cli/io/flops.h"

namespace flashjit::cli {
namespace {

// So many tokens as prompts have: half of them below 545, one in twenty above 3900. Drawn by bench/attention_ragged.py.
constexpr std::int32_t kLongTailed[] = {
    400, 1005, 415, 373,  178, 421, 2067, 905,  1889, 734, 874, 680,  73,   1519, 999,  990,  71,  67,  187,  310, 785,
    515, 1017, 251, 788,  873, 246, 4277, 1062, 2290, 258, 224, 360,  479,  1162, 733,  318,  172, 291, 2356, 206, 730,
    908, 91,   577, 2611, 48,  370, 479,  204,  989,  505, 93,  1470, 1215, 1694, 3067, 841,  628, 114, 1139, 261, 316,
    119, 170,  287, 2557, 47,  94,  725,  3077, 1090, 55,  26,  836,  225,  142,  1759, 2042, 657, 458};

std::vector<std::int32_t> equal(std::int32_t length) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(RaggedCell::kTokens / length), length);
}

// Of one head.
double visited_blocks(std::int64_t seqlen, std::int64_t block_q, std::int64_t block_kv, std::int64_t window) {
  std::int64_t blocks = 0;
  for (std::int64_t first = 0; first < seqlen; first += block_q) {
    const std::int64_t last = std::min(first + block_q, seqlen) - 1;
    blocks += last / block_kv + 1 - std::max<std::int64_t>(0, first - window) / block_kv;
  }
  return static_cast<double>(blocks);
}

}  // namespace

double DecodeCell::cache_bytes(DType dtype) const {
  constexpr double kKeysAndValues = 2;
  const auto elements = static_cast<double>(batch * context * heads_kv * kHeadDim);
  return kKeysAndValues * static_cast<double>(size_of(dtype)) * elements;
}

std::vector<DecodeCell> decode_grid(bool quick) {
  std::vector<DecodeCell> cells = {
      {"large", 64, 32, 8, 8192}, {"large", 16, 32, 8, 32768}, {"large", 1, 32, 8, 131072}, {"large", 64, 64, 8, 4096}};
  if (quick) return cells;
  struct Heads {
    std::int64_t q, kv;
  };
  for (const Heads& heads : {Heads{32, 8}, {32, 32}, {64, 8}})
    for (const std::int64_t batch : {1, 2, 4, 8})
      for (const std::int64_t context : {1024, 4096, 16384, 65536, 131072})
        cells.push_back({"small", batch, heads.q, heads.kv, context});
  for (const std::int64_t queries : {1, 2, 4}) cells.push_back({"queries", 64, 32, 8, 8192, queries});
  return cells;
}

std::int64_t RaggedCell::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

double RaggedCell::flops() const {
  double flops = 0;
  for (const std::int64_t length : lengths)
    flops += forward_flops({1, length, heads(), head_dim}, length, head_dim, true);
  return flops;
}

std::vector<RaggedCell> ragged_grid(bool quick) {
  struct Batch {
    const char* name;
    std::vector<std::int32_t> lengths;
  };
  std::vector<RaggedCell> cells;
  for (const Batch& batch :
       {Batch{"long_tailed", {std::begin(kLongTailed), std::end(kLongTailed)}}, Batch{"of_512", equal(512)},
        Batch{"of_1024", equal(1024)}, Batch{"of_4096", equal(4096)}}) {
    cells.push_back({batch.name, 128, batch.lengths});
    if (!quick) cells.push_back({batch.name, 64, batch.lengths});
  }
  return cells;
}

double dense_microseconds(const std::vector<std::int32_t>& lengths, const std::map<std::int64_t, double>& us_at) {
  const auto for_pair = [&](std::int64_t length) {
    return us_at.at(length) / static_cast<double>(RaggedCell::kTokens / length * length * length);
  };
  double us = 0;
  for (const std::int64_t length : lengths) {
    const auto found = us_at.lower_bound(length);
    const std::int64_t above = found == us_at.end() ? us_at.rbegin()->first : found->first;
    const std::int64_t below = above <= length || found == us_at.begin() ? above : std::prev(found)->first;
    const auto ratio = [&](std::int64_t to) { return std::log(static_cast<double>(to) / static_cast<double>(below)); };
    const double share = below == above ? 0 : ratio(length) / ratio(above);
    us +=
        static_cast<double>(length * length) * std::pow(for_pair(below), 1 - share) * std::pow(for_pair(above), share);
  }
  return us;
}

std::vector<WindowCell> window_grid(bool quick) {
  std::vector<WindowCell> cells;
  for (const int head_dim : {64, 128})
    for (const std::int64_t window :
         quick ? std::vector<std::int64_t>{1024} : std::vector<std::int64_t>{256, 1024, 4096})
      cells.push_back({head_dim, window});
  return cells;
}

double share_of_blocks(const WindowCell& cell, const Variant& variant) {
  const auto blocks = [&](std::int64_t window) {
    return visited_blocks(WindowCell::kSeqlen, block_q(variant), block_kv(variant), window);
  };
  return blocks(cell.window) / blocks(WindowCell::kSeqlen);
}

}  // namespace flashjit::cli
