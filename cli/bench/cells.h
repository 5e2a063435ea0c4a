// SPDX-License-Identifier: Apache-2.0
// The shapes of the grids decode, ragged and window, which those of bench/ have, too, so that their figures can be
// compared; and what is made of their times.
#pragma once

#include <flashjit/tensor.h>
#include <flashjit/variant.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace flashjit::cli {

// One or a few new queries of each sequence against its cache of keys, causal.
struct DecodeCell {
  std::string group;
  std::int64_t batch, heads, heads_kv, context, queries = 1;

  static constexpr int kHeadDim = 128;
  Dims q_shape() const { return {batch, queries, heads, kHeadDim}; }
  Dims k_shape() const { return {batch, context, heads_kv, kHeadDim}; }
  bool has_pages() const { return group != "small"; }
  double cache_bytes(DType dtype = DType::bf16) const;  // of keys and values
};
std::vector<DecodeCell> decode_grid(bool quick = false);

// Packed sequences of different lengths, each with as many keys as queries, causal.
struct RaggedCell {
  std::string batch;
  int head_dim;
  std::vector<std::int32_t> lengths;

  static constexpr std::int64_t kTokens = 65536, kHidden = 2048;
  std::int64_t heads() const { return kHidden / head_dim; }
  std::int64_t longest() const;
  double flops() const;
};
std::vector<RaggedCell> ragged_grid(bool quick = false);

// Lengths at which the dense kernel is timed, on so many sequences that they have RaggedCell::kTokens together.
inline constexpr std::int64_t kDenseLengths[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
// What the dense kernel would take for these sequences: us_at has its times. Between two of its lengths the time for
// each pair of a query and a key follows a power of the length.
double dense_microseconds(const std::vector<std::int32_t>& lengths, const std::map<std::int64_t, double>& us_at);

// A long sequence of which each query sees so many keys before its own.
struct WindowCell {
  int head_dim;
  std::int64_t window;

  static constexpr std::int64_t kSeqlen = 16384, kHidden = 2048;
  Dims shape() const { return {1, kSeqlen, kHidden / head_dim, head_dim}; }
};
std::vector<WindowCell> window_grid(bool quick = false);
// Of the blocks of keys that the variant's tiles visit without the window those that they visit with it.
double share_of_blocks(const WindowCell& cell, const Variant& variant);

}  // namespace flashjit::cli
