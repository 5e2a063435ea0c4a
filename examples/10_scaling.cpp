// SPDX-License-Identifier: Apache-2.0
// What attention over many GPUs would take by the library's model of time, and of that what linear scaling would: the
// table of docs/distributed.md. The fastest scheme of each cell is in it. No GPU is used, and nothing is measured.
#include <flashjit/distributed.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>

namespace {

using namespace flashjit::distributed;

constexpr int kRanksOfHost = 8;

// A call of one layer: 32 heads of queries, 8 of keys and values.
Sizes layer() { return {1, 32, 8, 128, 128, flashjit::DType::bf16}; }

double seconds_of_one_gpu(std::int64_t tokens, const Machine& machine) {
  const Sizes sizes = layer();
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  return 2 * pairs * static_cast<double>(sizes.num_heads_q * (sizes.head_dim + sizes.head_dim_v)) / machine.flops;
}

std::string cell(std::int64_t tokens, int ranks) {
  Options options{Sharding(Layout::zigzag, tokens, ranks)};
  options.attention.causal = true;
  options.ranks_of_host = kRanksOfHost;
  const Estimate fastest = estimates(layer(), options).front();
  const double share = seconds_of_one_gpu(tokens, options.machine) / ranks / fastest.seconds;
  char text[96];
  const bool is_long = fastest.seconds >= 1;
  std::snprintf(text, sizeof text, "%.3g %s, %.0f %%, %s", fastest.seconds * (is_long ? 1 : 1e3), is_long ? "s" : "ms",
                100 * share, to_string(fastest.scheme));
  return text;
}

}  // namespace

int main() {
  const auto gpus = {8, 16, 64, 256, 1024};
  std::printf("| tokens |");
  for (const int ranks : gpus) std::printf(" %d GPUs |", ranks);
  std::printf("\n|---|---|---|---|---|---|\n");
  for (const int thousands : {128, 512, 1024, 4096, 16384}) {
    std::printf("| %dk |", thousands);
    for (const int ranks : gpus) std::printf(" %s |", cell(std::int64_t{1024} * thousands, ranks).c_str());
    std::printf("\n");
  }
}
