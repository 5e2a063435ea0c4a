// SPDX-License-Identifier: Apache-2.0
// Opcodes that integers and floating-point numbers share: their decoders stand in operations_integer.cpp and
// operations_float.cpp, and the type decides.
#pragma once

#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

// By the last modifier: f16, f16x2, bf16, bf16x2, f32, f64.
inline bool has_floating_type(const Decoding& decoding) { return decoding.last().find('f') != std::string_view::npos; }

void decode_floating_add(Decoding& decoding, Instruction& instruction);
void decode_floating_sub(Decoding& decoding, Instruction& instruction);
void decode_floating_mul(Decoding& decoding, Instruction& instruction);
void decode_floating_mad(Decoding& decoding, Instruction& instruction);
void decode_floating_div(Decoding& decoding, Instruction& instruction);
void decode_floating_abs(Decoding& decoding, Instruction& instruction);
void decode_floating_neg(Decoding& decoding, Instruction& instruction);
void decode_floating_min(Decoding& decoding, Instruction& instruction);
void decode_floating_max(Decoding& decoding, Instruction& instruction);

// Comparison and selection, of integers and floating-point numbers alike.
void add_compare_operations(OperationTable& table);

}  // namespace flashjit::emulator
