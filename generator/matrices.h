// SPDX-License-Identifier: Apache-2.0
// The matrices of a warpgroup, in registers that only PTX names: one asm statement declares them at the kernel's begin,
// and those that use them name them in their text. A compiler that sees the 64 accumulators of a product handles each
// of them at each product, loop and join, which takes longer than all else that it does
// (docs/kernels/hopper_forward.md, "Compile time").
#pragma once

#include <string>
#include <string_view>

#include "flashjit/tensor.h"

namespace flashjit::generator {

// Rendered as a struct without members. Lane l of warp w holds in register 4n + e row 16w + l/4 + 8 (e/2) and column
// 8n + 2 (l%4) + e%2, as accumulators of wgmma and of mma.m16n8k16 do; "a row of the lane" is one of these two.
struct ScoreMatrix {
  std::string_view type;        // of the struct
  std::string_view registers;   // their name, before the number
  DType dtype;                  // of Q and K: 16 or 8 bits
  int keys;                     // columns: a multiple of 16 up to 256
  int steps;                    // of 32 bytes along the head dim
  int key_row_bytes;            // in a panel of K
  bool packs = false;           // into registers that the compiler sees
  std::string_view takes = {};  // the registers of another matrix that it copies; empty: of none
  bool transforms = false;      // each score, by what the compiler sees
  // The registers of P, where probabilities are dropped on their way there; empty: none are.
  std::string_view probabilities = {};
  // Of a piece of the head dim, where keys come piece by piece and are multiplied so; 0: they come at once.
  int steps_of_piece = 0;
};
std::string render(const ScoreMatrix& matrix);

// A fragments of wgmma: P. Of 16 bits two neighbouring keys in a register, of e4m3 four of the order in which
// templates/hopper/transposer.cuh lays values, or of their own order.
struct ProbabilityMatrix {
  std::string_view type, registers;
  DType dtype;
  int keys;
  std::string_view scores = {};   // the registers that keep() makes them of; empty: they are there already
  bool reads = false;             // into registers that the compiler sees
  bool in_order_of_keys = false;  // of e4m3: lanes exchange pairs for it
};
std::string render(const ProbabilityMatrix& matrix);

struct OutputMatrix {
  std::string_view type, registers;
  DType dtype;                     // of P and V, or of what stands in their place for gradients
  int columns;                     // the head dim of v, or those of a gradient
  int steps;                       // of 32 bytes of keys, or of queries
  std::string_view probabilities;  // the registers of P; empty: P is in shared memory
  bool reads = false;              // into registers that the compiler sees, as they are, and is cleared
  bool stores = false;             // to shared memory, as they are
  bool adds = false;               // to global memory, likewise
  bool transposes = false;         // P in shared memory, whose rows are then keys
  bool rows_are_columns = false;   // of V in memory: its rows are columns of the output; so they are of e4m3
  DType packed = dtype;            // what pairs of results become
  DType values = dtype;            // of V, where P is of another format of 8 bits
  // Registers of products that are added to the output, so many columns of it at a time; empty: they are summed there.
  std::string_view apart = {};
  int columns_apart = 0;
  bool weighs = false;  // what is added has a factor
  // Pieces of so many `steps` that values come in; then P of another warpgroup, in shared memory, is multiplied, too.
  int pieces = 0;
};
std::string render(const OutputMatrix& matrix);

// Of a backward kernel, rows are keys: S^T and dP^T, and P^T and dS^T as A fragments of wgmma.
struct DerivativeMatrix {
  std::string_view type, scores, gradients, probabilities, derivatives;  // the struct, and the names of registers
  DType dtype;
  int queries;                      // columns: a multiple of 16 up to 256
  int score_steps, gradient_steps;  // of 16, along the head dims
  int row_bytes;                    // in a panel of dS
  // Of a piece of the head dims, where keys or queries come piece by piece; 0: they come at once.
  int steps_of_piece = 0;
};
std::string render(const DerivativeMatrix& matrix);

}  // namespace flashjit::generator
