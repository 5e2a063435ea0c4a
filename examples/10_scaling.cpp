// SPDX-License-Identifier: Apache-2.0
// What attention over many GPUs and its gradients would take by the library's model of time, and of that what linear
// scaling would: the tables of docs/distributed.md. The fastest scheme of each cell is in it. No GPU is used, and
// nothing is measured.
#include <flashjit/distributed.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

namespace {

using namespace flashjit::distributed;

constexpr int kRanksOfHost = 8;

// A call of one layer: 32 heads of queries, 8 of keys and values.
Sizes layer() { return {1, 32, 8, 128, 128, flashjit::DType::bf16}; }

// Attention, or its gradients: what estimates them, and how many of its products' head dims a pair of a query and a key
// has.
struct Pass {
  std::vector<Estimate> (*estimates)(const Sizes& sizes, const Options& options);
  double Machine::*flops;
  double dims_of_pair;
};
const Pass kForward{estimates, &Machine::flops, 2 * 128},
    kBackward{gradient_estimates, &Machine::backward_flops, 5 * 128};

double seconds_of_one_gpu(const Pass& pass, std::int64_t tokens, const Machine& machine) {
  const Sizes sizes = layer();
  const double pairs =
      static_cast<double>(sizes.num_heads_q) * static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  return 2 * pairs * pass.dims_of_pair / (machine.*pass.flops);
}

std::string cell(const Pass& pass, std::int64_t tokens, int ranks) {
  Options options{Sharding(Layout::zigzag, tokens, ranks)};
  options.attention.causal = true;
  options.ranks_of_host = kRanksOfHost;
  const Estimate fastest = pass.estimates(layer(), options).front();
  const double share = seconds_of_one_gpu(pass, tokens, options.machine) / ranks / fastest.seconds;
  char text[96];
  const bool is_long = fastest.seconds >= 1;
  const int digits = fastest.seconds >= 1000 ? 4 : 3;
  std::snprintf(text, sizeof text, "%.*g %s, %.0f %%, %s", digits, fastest.seconds * (is_long ? 1 : 1e3),
                is_long ? "s" : "ms", 100 * share, to_string(fastest.scheme));
  return text;
}

void print_table(const Pass& pass) {
  const auto gpus = {8, 16, 64, 256, 1024};
  std::printf("| tokens |");
  for (const int ranks : gpus) std::printf(" %d GPUs |", ranks);
  std::printf("\n|---|---|---|---|---|---|\n");
  for (const int thousands : {128, 512, 1024, 4096, 16384}) {
    std::printf("| %dk |", thousands);
    for (const int ranks : gpus) std::printf(" %s |", cell(pass, std::int64_t{1024} * thousands, ranks).c_str());
    std::printf("\n");
  }
}

}  // namespace

int main() {
  print_table(kForward);
  std::printf("\nGradients:\n\n");
  print_table(kBackward);
}
