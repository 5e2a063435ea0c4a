// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk and cp.reduce.async.bulk: in operations_bulk_copy.cpp.
#pragma once

#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

// What follows "cp.async.bulk" and "cp.reduce.async.bulk".
void decode_bulk_copy(Decoding& decoding, Instruction& instruction, bool reduces);

}  // namespace flashjit::emulator
