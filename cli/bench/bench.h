// SPDX-License-Identifier: Apache-2.0
// The grids of flashjit bench. Each prints a table on stdout and adds "rows" and what else it found to the record.
#pragma once

#include <flashjit/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/io/command.h"
#include "cli/io/interrupt.h"

namespace flashjit::cli {

struct BenchOptions {
  std::string grid, json, architecture;
  std::optional<std::string> dtype;  // default: the grid's own
  std::optional<int> repeats;        // likewise
  bool quick = false, e4m3 = false, token_scales = false;
};

struct BenchContext {
  const BenchOptions& options;
  const Session& session;
  const InterruptGuard& interrupt;
  Engine& engine;
  SystemInfo system;
  DType dtype;

  DType kv_dtype() const { return options.e4m3 ? DType::e4m3 : dtype; }
};

// The grid of the FlashAttention-3 paper. Needs a GPU.
void bench_forward(const BenchContext& context, Json& record);
// On the same grid: what calls use beside the default, in turn. Needs a GPU.
void bench_tuned(const BenchContext& context, Json& record);
// The ablation of the FlashAttention-3 paper, and the schemes beside it. Needs a GPU of sm_90a.
void bench_ablation(const BenchContext& context, Json& record);
std::vector<Variant> ablation_variants();
// The steps of the RTX 5090 write-up. Needs a GPU.
void bench_ladder(const BenchContext& context, Json& record);
// New queries on caches of keys, contiguous and in pages. Needs a GPU.
void bench_decode(const BenchContext& context, Json& record);
// Packed sequences of different lengths, beside what the dense kernel would take for them. Needs a GPU.
void bench_ragged(const BenchContext& context, Json& record);
// What a sliding window saves of a kernel's time, beside what it saves of its blocks. Needs a GPU.
void bench_window(const BenchContext& context, Json& record);
// Rows made e4m3, beside what the memory's rate allows. Needs a GPU.
void bench_quantize(const BenchContext& context, Json& record);
// What 8 bits cost of the output's digits, with scales of blocks and with rotations: table 3 of the FlashAttention-3
// paper. Without a GPU in the emulator.
void bench_accuracy(const BenchContext& context, Json& record);
// What compiling, looking up, loading and calling cost. Without a GPU only the first two.
void bench_jit(const BenchContext& context, Json& record);

// Random inputs, and memory for the output.
struct BenchTensors {
  DeviceTensor q, k, v, out;
  DeviceTensor scales = {};  // of each token and head of k and of v; without data: none
};
BenchTensors make_tensors(DType dtype, const Dims& q_shape, const Dims& k_shape, int device);
BenchTensors make_tensors(DType dtype, const Dims& shape, int device);  // all of one shape

// Of a cell: so many launches as were asked for, else 30.
MeasureOptions measure_options(const BenchContext& context);

double median(std::vector<double> values);

}  // namespace flashjit::cli
