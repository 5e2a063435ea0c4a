// SPDX-License-Identifier: Apache-2.0
// What flashjit autotune is to tune for, as users write it.
#pragma once

#include <flashjit/tuning.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/problem_options.h"

namespace flashjit::cli {

template <class OfProblem>
struct TuneCaseOf {
  OfProblem problem;
  CallShape shape;
};
using TuneCase = TuneCaseOf<Problem>;

// --grid forward, --shapes FILE, or --head-dim with --seqlen: exactly one of the three ways.
struct TuneSelection {
  std::string grid, shapes, seqlens;
  // Of texts only the class is tuned.
  CallProblemLists problems{{}, {.masks = {}, .score = {}, .captures = {}, .types_suffice = true}};
  int batch = 1, heads = 16;
  std::optional<int> heads_kv;  // default: as many as heads

  bool empty() const { return grid.empty() && shapes.empty() && seqlens.empty(); }
  // All throw Error(invalid_argument), which names the option, and for a file its line and field. Error(io): of a file
  // that a text captures.
  std::vector<TuneCase> cases() const;
};

// A line for each case: dtype, head dimension, mask, batch, seqlen_q, seqlen_kv, heads_q, heads_kv.
std::vector<TuneCase> parse_shapes(const std::string& file, std::string_view text);

std::string shape_text(const CallShape& shape);  // "4 x 2048 q x 2048 kv, 16 heads"; "..., 16/4 heads"

}  // namespace flashjit::cli
