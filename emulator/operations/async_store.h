// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "emulator/ptx/instruction.h"

namespace flashjit::emulator {

// What follows "st.async".
void decode_async_store(Decoding& decoding, Instruction& instruction);

}  // namespace flashjit::emulator
